"""Server and clients of one path, their system calls in any order: no half file.

The clients are hs_connectors' own. Each call that touches the path or its lock is one
step, and a seed decides whose step is next.
"""

from __future__ import annotations

import fcntl
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
transfer = pytest.importorskip("hs_connectors.transfer")

from specshim.tap.sink import FileSink

ROWS = 3
CALLS = ((os, "open"), (os, "stat"), (os, "unlink"), (os, "remove"), (os, "rename"),
         (os, "close"), (fcntl, "flock"), (time, "sleep"))  # fmt: skip


class Turns:
    """Runs functions in threads of which one at a time takes its next step."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._changed = threading.Condition()
        self._waiting: list[threading.Thread] = []
        self._next: threading.Thread | None = None

    def step(self) -> None:
        """Called before each system call; waits for this thread's turn."""
        me = threading.current_thread()
        if me.name != "actor":
            return
        with self._changed:
            self._waiting.append(me)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._next is me, 20)
            self._next = None
            self._waiting.remove(me)

    def run(self, actors: list[Callable[[], None]]) -> None:
        """Run the actors to their ends, which must come."""
        left = len(actors)

        def run(actor: Callable[[], None]) -> None:
            nonlocal left
            try:
                actor()
            finally:
                with self._changed:
                    left -= 1
                    self._changed.notify_all()

        for actor in actors:
            threading.Thread(
                target=run, args=(actor,), name="actor", daemon=True
            ).start()
        with self._changed:
            for _ in range(1000):
                at_rest = self._changed.wait_for(
                    lambda: self._next is None and len(self._waiting) == left, 20
                )
                assert at_rest
                if left == 0:
                    return
                self._next = self._random.choice(self._waiting)
                self._changed.notify_all()
        raise AssertionError("somebody waits for ever")


@pytest.fixture
def turns(monkeypatch) -> Callable[[int], Turns]:
    current: list[Turns] = []

    def hooked(function: Callable) -> Callable:
        def call(*args, **options):
            if current:
                current[-1].step()
            return function(*args, **options)

        return call

    for module, name in CALLS:
        monkeypatch.setattr(module, name, hooked(getattr(module, name)))

    def begin(seed: int) -> Turns:
        current.append(Turns(seed))
        return current[-1]

    return begin


def write(path: str, sample: int, opened: threading.Event | None = None) -> None:
    """The server's part; sample -1 fails when it is to be completed."""
    writer = FileSink(1, 2, "float32", {}).open(path, announced=True)
    if opened:
        opened.set()
    rows = torch.full((ROWS, 1, 2), float(sample))
    writer.write(0, memoryview(rows.view(torch.uint8).reshape(-1).numpy()))
    if sample < 0:
        writer.abort()
        writer.report("the disk is full")
    else:
        writer.commit(ROWS, [sample] * ROWS)


def read(path: str) -> int | str:
    """The client's part: the number of the sample, or why there is none."""
    try:
        loaded = transfer.FileTransfer(os.path.dirname(path)).get_generated(
            {"hidden_states_path": path} if _NEW else path
        )
    except FileNotFoundError as error:
        return "told" if "No hidden states" in str(error) else "missing"
    if loaded is None:
        return "missing"
    ids, states = loaded["token_ids"].tolist(), loaded["hidden_states"]
    assert len(set(ids)) == 1 and len(ids) == ROWS
    assert torch.equal(states, torch.full((ROWS, 1, 2), float(ids[0])))
    return ids[0]


_NEW = "hs_transfer_params" in transfer.FileTransfer.get_generated.__code__.co_varnames


def outcomes(turns, tmp_path, seeds: int, sample: int, late: bool) -> Counter:
    """Of the clients of ``sample``, over many orders.

    ``late``: meanwhile a client reads the sample before it, which had the same path.
    """
    found: Counter = Counter()
    for seed in range(seeds):
        folder = tmp_path / str(seed)
        folder.mkdir()
        path, opened = str(folder / "a"), threading.Event()
        write(path, 1)
        results: dict[str, int | str] = {}

        def client(name: str, path=path, results=results) -> None:
            results[name] = read(path)

        def told(opened=opened, client=client) -> None:
            while not opened.is_set():  # the response comes after the opening
                time.sleep(0)
            client("told")

        actors = [lambda path=path, opened=opened: write(path, sample, opened), told]
        if late:
            actors.append(lambda client=client: client("late"))
        turns(seed).run(actors)
        found[results["told"]] += 1
        assert results.get("late", 1) in (1, sample, "missing", "told")
        assert [n for n in os.listdir(folder) if n.endswith(".partial")] == []
    return found


def test_the_client_of_a_sample_always_gets_it(turns, tmp_path):
    assert set(outcomes(turns, tmp_path, 150, sample=2, late=False)) == {2}


def test_the_client_of_a_failed_sample_is_always_told(turns, tmp_path, monkeypatch):
    from specshim import _trainer

    load = transfer._load_hs_file
    if not hasattr(load, "__wrapped__"):  # as the patch does, where it is not armed
        monkeypatch.setattr(
            transfer, "_load_hs_file", lambda p: _trainer.load_named(load, (p,), {})
        )
    assert set(outcomes(turns, tmp_path, 150, sample=-1, late=False)) == {"told"}


def test_a_client_that_is_late_for_the_sample_before_harms_no_content(turns, tmp_path):
    found = outcomes(turns, tmp_path, 300, sample=2, late=True)
    # It may take the lock of the new sample away; then that one's client gives up.
    assert set(found) <= {2, "missing", "told"} and found[2] > 0
