"""The backlog bound: producers wait for room and for age, and never for nothing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from specshim.tap.backlog import Backlog, Pace


def admitted_within(backlog: Backlog, size: int, seconds: float) -> bool:
    thread = threading.Thread(target=backlog.admit, args=(size,), daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def test_what_would_take_longer_than_the_bound_passes_alone():
    backlog = Backlog(0.001)
    with backlog.writing(backlog.admit(1), 1):
        time.sleep(0.1)
    backlog.release(0)
    assert admitted_within(backlog, 1000, 1)


def test_age_bound():
    backlog = Backlog(0.1)
    ticket = backlog.admit(1)
    assert admitted_within(backlog, 1, 1)
    time.sleep(0.15)
    assert not admitted_within(backlog, 1, 0.2)
    backlog.release(ticket)


def test_releasing_twice_is_harmless():
    backlog = Backlog(60)
    ticket = backlog.admit(5)
    backlog.release(ticket)
    backlog.release(ticket)
    assert backlog.bytes == 0


def test_what_is_admitted_is_written_within_the_bound():
    backlog, ages = Backlog(0.4), []

    def write(ticket: int, since: float) -> None:
        with backlog.writing(ticket, 20):
            time.sleep(0.02)
        backlog.release(ticket)
        ages.append(time.monotonic() - since)

    with ThreadPoolExecutor(1) as pool:
        for number in range(60):
            job = pool.submit(write, backlog.admit(20), time.monotonic())
            if not number:
                job.result()  # so that the pace is known
    assert 0.2 < max(ages) < 0.8 and backlog.bytes == 0


def test_a_written_part_makes_room_before_its_step_is_whole():
    backlog = Backlog(10)
    ticket = backlog.admit(100)
    for _ in range(2):
        with backlog.writing(ticket, 40):
            time.sleep(0.01)
    assert backlog.bytes == 20
    assert admitted_within(backlog, 100, 1)


def test_the_pace_is_that_of_all_writers_and_pauses_do_not_count():
    now = [0.0]
    pace = Pace(lambda: now[0])
    assert pace.seconds(100) == 0  # nothing is known yet
    first, second = pace.begin(), pace.begin()
    assert pace.seconds(1) == float("inf")
    now[0] = 2.0
    pace.end(first, 100), pace.end(second, 100)
    now[0] = 50.0
    assert pace.seconds(100) == 1.0
    third = pace.begin()
    now[0] = 54.0  # six seconds of writing by now, and no more bytes
    assert pace.seconds(100) == 3.0
    pace.end(third, 400)
    assert pace.seconds(100) == 1.0


def test_several_at_once_do_not_wait_for_each_other():
    backlog = Backlog(0.05)
    with backlog.writing(backlog.admit(1), 1):
        time.sleep(0.1)
    backlog.release(0)
    begun = threading.Thread(target=backlog.admit_all, args=([5, 5],), daemon=True)
    begun.start(), begun.join(1)
    assert not begun.is_alive() and backlog.bytes == 10
    assert not admitted_within(backlog, 5, 0.2)
