"""The backlog bound: producers wait for room and for age, and never for nothing."""

from __future__ import annotations

import threading
import time

from specshim.tap.backlog import Backlog


def admitted_within(backlog: Backlog, size: int, seconds: float) -> bool:
    thread = threading.Thread(target=backlog.admit, args=(size,), daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def test_one_step_larger_than_the_bound_passes_alone():
    assert admitted_within(Backlog(10, 60), 1000, 1)


def test_bytes_bound_until_released():
    backlog = Backlog(100, 60)
    ticket = backlog.admit(60)
    assert not admitted_within(backlog, 60, 0.2)
    backlog.release(ticket)
    time.sleep(0.1)
    assert backlog.bytes == 60


def test_age_bound():
    backlog = Backlog(1000, 0.1)
    ticket = backlog.admit(1)
    assert admitted_within(backlog, 1, 1)
    time.sleep(0.15)
    assert not admitted_within(backlog, 1, 0.2)
    backlog.release(ticket)


def test_releasing_twice_is_harmless():
    backlog = Backlog(10, 60)
    ticket = backlog.admit(5)
    backlog.release(ticket)
    backlog.release(ticket)
    assert backlog.bytes == 0
