"""The worker's half on a real sink: every sample is complete and right, or absent."""

from __future__ import annotations

import fcntl
import os
import threading
import time
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
from safetensors.torch import load_file

from specshim.tap.places import FilePlaces
from specshim.tap.samples import Closed, Opened, Samples, Scheduled, StepSamples
from specshim.tap.sink import FileSink
from specshim.tap.taps import Taps
from specshim.tap.worker import TapWorker, WorkerSettings

SLOTS, HIDDEN = 2, 8


class Runner:
    """The part of model runner V1 that says which request has which rows."""

    def __init__(self) -> None:
        self.input_batch = types.SimpleNamespace(req_ids=[])
        self.query_start_loc = types.SimpleNamespace(np=[0])


class Engine:
    """Drives a TapWorker step by step; row values name request and token."""

    def __init__(self, folder, opens_later=False, **settings) -> None:
        self.folder = folder
        self.runner = Runner()
        rows = torch.zeros(64, SLOTS, HIDDEN)
        runs = torch.zeros(SLOTS, dtype=torch.int32)
        self.taps = Taps(self.runner, (1, 2), rows, runs, None, None, {})
        sink = FileSink(SLOTS, HIDDEN, "float32", {})
        self.worker = TapWorker(
            self.taps, sink, WorkerSettings(**settings), lambda: opens_later
        )

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def open(self, name: str, rows: int | None, serial: int = 0) -> dict[str, Opened]:
        ids = tuple(range(rows or 0))
        return {name: Opened(self.path(name), rows, ids, serial)}

    def step(self, batch, *, runs: int = 1, **notes) -> None:
        """``batch``: {name: (start, count)} in the runner's order."""
        self.worker.begin(StepSamples())
        self.runner.input_batch.req_ids = list(batch)
        starts, row = [], 0
        for name, (start, count) in batch.items():
            starts.append(row)
            self.taps.rows[row : row + count] = value(name, start, count)
            row += count
        self.runner.query_start_loc.np = [*starts, row]
        self.taps.runs += runs
        scheduled = {name: Scheduled(*rows) for name, rows in batch.items()}
        # The scheduler's order is not the runner's.
        self.worker.step(
            StepSamples(
                scheduled=dict(reversed(scheduled.items())),
                counts={name: count for name, (_, count) in batch.items()},
                **notes,
            )
        )

    def finish(self) -> list[str]:
        self.worker.shutdown()
        return sorted(f for f in os.listdir(self.folder) if not f.endswith(".lock"))


def value(name: str, start: int, count: int):
    tokens = torch.arange(start, start + count, dtype=torch.float32)
    return (hash(name) % 97 + tokens / 64)[:, None, None].expand(count, SLOTS, HIDDEN)


@pytest.fixture(params=[False, True], ids=["opens at once", "opens later"])
def engine(tmp_path, request):
    return Engine(tmp_path, request.param)


def raising(error: BaseException):
    """A function that raises it, whatever it is called with."""

    def fail(*args):
        raise error

    return fail


def check(engine: Engine, name: str, rows: int) -> None:
    loaded = load_file(engine.path(name))
    assert torch.equal(loaded["hidden_states"], value(name, 0, rows))


def test_chunks_of_several_requests_in_any_batch_order(engine):
    engine.step(
        {"a": (0, 5), "b": (0, 7)}, opened=engine.open("a", 9) | engine.open("b", 7)
    )
    engine.step({"c": (0, 3), "b": (7, 1), "a": (5, 4)}, opened=engine.open("c", 3))
    assert engine.finish() == ["a", "b", "c"]
    check(engine, "a", 9), check(engine, "b", 7), check(engine, "c", 3)


@pytest.mark.parametrize("name", ["n\0", "x" * 300, "d/" * 3000 + "x"])
def test_a_path_that_cannot_be_opened_fails_its_sample_alone(engine, name):
    before = os.listdir("/proc/self/fd")
    bad = Opened(engine.path(name), 4, (0, 1, 2, 3))
    engine.step(
        {"a": (0, 4), "bad": (0, 4)}, opened={"bad": bad, **engine.open("a", 4)}
    )
    assert engine.finish()[:1] == ["a"]
    check(engine, "a", 4)
    assert os.listdir("/proc/self/fd") == before


def test_output_rows_are_kept_until_the_size_is_known(engine):
    engine.step({"a": (0, 4)}, opened=engine.open("a", None))
    engine.step({"a": (4, 1)})
    engine.step({"a": (5, 1)})  # one step too many, as asynchronous scheduling makes
    engine.step({}, closed={"a": Closed(5, (1, 2, 3, 4, 5))})
    assert engine.finish() == ["a"]
    check(engine, "a", 5)
    assert load_file(engine.path("a"))["token_ids"].tolist() == [1, 2, 3, 4, 5]


def test_recomputed_rows_overwrite_and_the_sample_is_whole(engine):
    engine.step({"a": (0, 6)}, opened=engine.open("a", 8))
    engine.step({"a": (0, 6)})  # preempted, started over
    engine.step({"a": (6, 2)})
    assert engine.finish() == ["a"]
    check(engine, "a", 8)


def test_a_gap_leaves_no_file(engine, caplog):
    engine.step({"a": (2, 6)}, opened=engine.open("a", 8))
    assert engine.finish() == [] and os.listdir(engine.folder) == []
    assert "No hidden states for request a" in caplog.text


@pytest.mark.parametrize("runs", [0, 2])
def test_a_forward_without_taps_leaves_no_file(engine, runs, caplog):
    engine.step({"a": (0, 4)}, opened=engine.open("a", 8))
    engine.step({"a": (4, 4)}, runs=runs)
    assert engine.finish() == []
    assert "did not run exactly once" in caplog.text


def test_a_step_without_a_forward_records_nothing(engine):
    engine.step({"a": (0, 4)}, opened=engine.open("a", 8))
    engine.worker.begin(StepSamples())
    engine.worker.step(StepSamples())
    engine.step({"a": (4, 4)})
    assert engine.finish() == ["a"]
    check(engine, "a", 8)


def test_a_batch_that_is_not_the_schedulers_fails_its_requests(engine, caplog):
    engine.worker.step(StepSamples(opened=engine.open("a", 4)))
    engine.runner.input_batch.req_ids = ["b"]
    engine.worker.step(StepSamples(counts={"a": 4}, scheduled={"a": Scheduled(0, 4)}))
    assert engine.finish() == []
    assert "the runner's batch holds 0" in caplog.text


def test_an_aborted_request_leaves_nothing_even_when_complete(engine):
    engine.step(
        {"a": (0, 4), "b": (0, 4)}, opened=engine.open("a", 4) | engine.open("b", 8)
    )
    engine.worker._samples["a"].done.wait()
    engine.step({}, dropped={"a": "the request was aborted", "b": "the same"})
    engine.finish()
    assert os.listdir(engine.folder) == []


def test_what_was_told_and_reached_nobody_is_taken_back(engine, monkeypatch):
    failing(monkeypatch, engine, "c")  # whose reason is in its lock file
    both = engine.open("a", 4, serial=1) | engine.open("b", 4, serial=2)
    engine.step({"a": (0, 4), "b": (0, 4)}, opened=both)
    for name in "abc":
        engine.worker.wait_for_file(name)
    engine.step({}, closed={name: Closed(4, (0, 1, 2, 3)) for name in "abc"})
    for name in "abc":
        while not lock_is_free(f"{engine.path(name)}.lock"):
            time.sleep(0.01)
    engine.step({}, withdrawn=[1, 7, 77])
    assert sorted(os.listdir(engine.folder)) == ["b", "b.lock"]


def test_what_is_taken_back_before_it_is_complete_never_appears(engine, monkeypatch):
    go_on, rename = threading.Event(), os.rename
    monkeypatch.setattr(os, "rename", lambda *a, **o: (go_on.wait(20), rename(*a, **o)))
    engine.step({"a": (0, 4)}, opened=engine.open("a", 4, serial=1))
    engine.step({}, closed={"a": Closed(4, (0, 1, 2, 3))}, withdrawn=[1])
    go_on.set()
    engine.finish()
    assert os.listdir(engine.folder) == []


def test_a_later_sample_of_the_name_is_not_taken_back(engine):
    for serial, name in enumerate(("old", "new")):
        opened = Opened(engine.path("a"), 4, (0, 1, 2, 3), serial)
        engine.step({name: (0, 4)}, opened={name: opened})
        engine.step({}, closed={name: Closed(4, (0, 1, 2, 3))})
    engine.step({}, withdrawn=[0])
    assert engine.finish() == ["a"]
    assert torch.equal(load_file(engine.path("a"))["hidden_states"], value("new", 0, 4))


def test_an_abort_while_the_last_rows_are_being_written_leaves_nothing(
    engine, monkeypatch
):
    reached, go_on = threading.Event(), threading.Event()
    rename = os.rename

    def slow(source, target, **options):
        reached.set()
        go_on.wait(5)
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", slow)
    engine.step({"a": (0, 4)}, opened=engine.open("a", 4))
    assert reached.wait(5)
    engine.step({}, dropped={"a": "the request was aborted"})
    go_on.set()
    engine.finish()
    assert os.listdir(engine.folder) == []


def test_the_end_of_a_sample_in_a_slow_store_does_not_hold_up_the_forward(
    engine, monkeypatch
):
    go_on, rename = threading.Event(), os.rename
    monkeypatch.setattr(os, "rename", lambda *a, **o: (go_on.wait(20), rename(*a, **o)))
    engine.worker._sink.slow = True
    engine.step({"a": (0, 4)}, opened=engine.open("a", None))
    engine.step({}, closed={"a": Closed(4, (0, 1, 2, 3))})  # returns at once
    assert not os.path.exists(engine.path("a"))
    go_on.set()
    assert engine.finish() == ["a"]
    check(engine, "a", 4)
    assert engine.worker._backlog.bytes == 0


def test_a_path_in_use_is_waited_for_and_never_served_twice(engine):
    first = engine.open("a", 4)
    engine.step({"a": (0, 4)}, opened=first)
    engine.step({}, closed={"a": Closed(4, (0, 1, 2, 3))})
    again = {"b": Opened(engine.path("a"), 8, tuple(range(8)))}
    engine.step({"b": (0, 4)}, opened=again)
    engine.worker.wait_for_file("b")
    assert not os.path.exists(engine.path("a"))  # not the older sample
    engine.step({"b": (4, 4)})
    engine.finish()
    assert torch.equal(load_file(engine.path("a"))["hidden_states"], value("b", 0, 8))


def at(engine, path: str, rows: int | None) -> Opened:
    return Opened(engine.path(path), rows, tuple(range(rows or 0)))


@pytest.mark.parametrize("reason", ["the request was aborted", None])
def test_a_sample_that_ends_in_the_step_gives_its_path_to_the_next(engine, reason):
    engine.step({"old": (0, 3)}, opened={"old": at(engine, "a", None)})
    end = {"closed": {"old": Closed(3, (0, 1, 2))}}
    if reason is not None:
        end = {"dropped": {"old": reason}}
    within(5, engine.step, {"new": (0, 4)}, opened={"new": at(engine, "a", 4)}, **end)
    assert engine.finish() == ["a"]
    assert torch.equal(load_file(engine.path("a"))["hidden_states"], value("new", 0, 4))


@pytest.mark.parametrize("aborted", [True, False])
def test_both_halves_hand_a_path_on_in_one_step(engine, aborted):
    samples = Samples(FilePlaces(str(engine.folder), True), sync=False)
    parameters = {"hidden_states_path": "x", "include_output_tokens": True}

    def step(name: str) -> None:
        samples.open(name, [1, 2, 3], 3, parameters)
        noted = samples.take_step()
        batch = {name: (0, 3)}
        notes = {k: getattr(noted, k) for k in ("opened", "closed", "dropped")}
        samples.schedule(name, 0, 3), samples.take_step()
        within(5, engine.step, batch, **notes)

    step("old")
    samples.finish("old", [1, 2, 3, 4], aborted=aborted)
    step("new")
    samples.finish("new", [1, 2, 3, 5], aborted=False)
    engine.worker.step(samples.take_ended())  # as where both share a process
    assert engine.finish() == ["x"]
    assert torch.equal(load_file(engine.path("x"))["hidden_states"], value("new", 0, 3))


@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_an_id_that_ends_and_comes_again_in_one_step_is_a_new_sample(engine, end):
    engine.step({"a": (0, 3)}, opened={"a": at(engine, "a", None)})
    ends = {"a": Closed(3, (0, 1, 2)) if end == "closed" else "aborted"}
    within(
        5, engine.step, {"a": (0, 4)}, opened={"a": at(engine, "a", 4)}, **{end: ends}
    )
    assert engine.finish() == ["a"]
    check(engine, "a", 4)


def test_a_path_that_stays_in_use_fails_the_new_sample(tmp_path, monkeypatch, caplog):
    engine = Engine(tmp_path, path_wait_seconds=0.1)
    go_on, rename = threading.Event(), os.rename
    monkeypatch.setattr(os, "rename", lambda *a, **o: (go_on.wait(20), rename(*a, **o)))
    engine.step({"old": (0, 4)}, opened={"old": at(engine, "a", 4)})
    within(
        5,
        engine.step,
        {"new": (0, 4)},
        opened={"new": at(engine, "a", 4)},
        closed={"old": Closed(4, (0, 1, 2, 3))},
    )
    go_on.set()
    assert engine.finish() == ["a"]
    assert torch.equal(load_file(engine.path("a"))["hidden_states"], value("old", 0, 4))
    assert "No hidden states for request new: the sample before it" in caplog.text


def test_an_aborted_sample_is_gone_before_its_path_is_used_again(engine, monkeypatch):
    reached, go_on = threading.Event(), threading.Event()
    rename, unlink = os.rename, os.unlink

    def slow_rename(source, target, **options):
        reached.set()
        go_on.wait(5)
        rename(source, target, **options)

    def slow_unlink(path, **options):
        if threading.current_thread().name.startswith("specshim-writer"):
            time.sleep(0.3)  # the writer removes what was aborted meanwhile
        unlink(path, **options)

    monkeypatch.setattr(os, "rename", slow_rename)
    engine.step({"old": (0, 4)}, opened={"old": at(engine, "a", 4)})
    assert reached.wait(5)
    monkeypatch.setattr(os, "unlink", slow_unlink)
    threading.Timer(0.1, go_on.set).start()
    engine.step({}, opened={"new": at(engine, "a", 8)}, dropped={"old": "aborted"})
    time.sleep(0.7)
    assert os.path.exists(engine.path("a.lock"))  # the new sample's


def within(seconds: float, call, *args, **options) -> None:
    thread = threading.Thread(target=call, args=args, kwargs=options, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "the forward's thread waits for ever"


def test_rows_that_cannot_be_taken_fail_the_step_and_not_the_server(
    engine, monkeypatch, caplog
):
    engine.step({"a": (0, 4)}, opened=engine.open("a", 8))
    with monkeypatch.context() as patched:
        patched.setattr(
            engine.worker._snapshots,
            "take",
            raising(RuntimeError("no pinned memory left")),
        )
        engine.step({"a": (4, 4), "b": (0, 4)}, opened=engine.open("b", 4))
    engine.step({"c": (0, 4)}, opened=engine.open("c", 4))
    assert engine.finish() == ["c"]
    assert engine.worker._backlog.bytes == 0
    assert "no pinned memory left" in caplog.text


def test_a_failed_rename_closes_no_descriptor_of_somebody_else(engine, monkeypatch):
    closed, close = [], os.close
    monkeypatch.setattr(os, "close", lambda fd: (closed.append(fd), close(fd)))
    monkeypatch.setattr(
        os, "rename", lambda *a, **o: (_ for _ in ()).throw(OSError(21, "x"))
    )
    engine.step({"a": (0, 4)}, opened=engine.open("a", 4))
    assert engine.finish() == []
    assert len(closed) == len(set(closed)) == 3  # the data, the lock and their folder


def test_shutdown_completes_what_is_covered_and_drops_the_rest(engine):
    engine.step(
        {"a": (0, 4), "b": (0, 4)}, opened=engine.open("a", 4) | engine.open("b", 8)
    )
    assert engine.finish() == ["a"]
    check(engine, "a", 4)


def test_sync_files_are_complete_when_the_step_returns(tmp_path):
    engine = Engine(tmp_path, sync=True)
    engine.step({"a": (0, 4)}, opened=engine.open("a", 4))
    check(engine, "a", 4)
    assert os.listdir(tmp_path) == ["a"]  # and there is no lock


@pytest.mark.parametrize("rows", [1, 3, 5, 64])
def test_a_step_comes_in_parts_where_the_memory_is_small(tmp_path, rows):
    memory = rows * 4 * SLOTS * HIDDEN * 4  # four blocks of so many rows
    engine = Engine(tmp_path, max_backlog_bytes=memory)
    opened = {**engine.open("a", 24), **engine.open("b", 40), **engine.open("c", None)}
    within(5, engine.step, {"a": (0, 20), "c": (0, 3), "b": (0, 33)}, opened=opened)
    within(5, engine.step, {"a": (20, 4), "c": (3, 1), "b": (33, 7)})
    within(5, engine.step, {}, closed={"c": Closed(4, (0, 1, 2, 3))})
    assert engine.finish() == ["a", "b", "c"]
    check(engine, "a", 24), check(engine, "b", 40), check(engine, "c", 4)
    assert engine.worker._snapshots.memory.used_bytes == 0


def test_memory_that_fails_in_mid_step_fails_the_step_and_comes_back(
    tmp_path, monkeypatch, caplog
):
    engine = Engine(tmp_path, max_backlog_bytes=16 * SLOTS * HIDDEN * 4)
    memory = engine.worker._snapshots.memory
    take, taken = memory.take, []

    def fail(count):
        if len(taken) == 2:
            raise RuntimeError("no memory left")
        taken.append(take(count))
        return taken[-1]

    both = {**engine.open("a", 3), **engine.open("b", 24)}
    with monkeypatch.context() as patched:
        patched.setattr(memory, "take", fail)
        engine.step({"a": (0, 3), "b": (0, 24)}, opened=both)
    engine.step({"c": (0, 24)}, opened=engine.open("c", 24))
    assert engine.finish() == ["a", "c"]  # all rows of a were out already
    check(engine, "a", 3), check(engine, "c", 24)
    assert memory.used_bytes == 0 and "no memory left" in caplog.text


def test_the_forward_does_not_wait_for_files_but_who_tells_of_them_does(
    tmp_path, monkeypatch
):
    engine, go_on = Engine(tmp_path, opens_later=True), threading.Event()
    open_file = engine.worker._sink.open

    def slow(*args, **options):
        assert go_on.wait(20)
        return open_file(*args, **options)

    monkeypatch.setattr(engine.worker._sink, "open", slow)
    within(5, engine.step, {"a": (0, 4)}, opened=engine.open("a", 4))
    assert os.listdir(tmp_path) == []
    told = threading.Thread(target=engine.worker.wait_for_file, args=("a",))
    told.start(), told.join(0.2)
    assert told.is_alive()
    go_on.set()
    told.join(5)
    assert "a.lock" in os.listdir(tmp_path)
    assert engine.finish() == ["a"]
    check(engine, "a", 4)


def test_a_file_that_cannot_be_opened_is_known_before_its_client_is_told(tmp_path):
    engine = Engine(tmp_path, opens_later=True)
    bad = Opened(engine.path("n\0"), 4, (0, 1, 2, 3), 7)
    engine.step({"bad": (0, 4)}, opened={"bad": bad})
    engine.worker.wait_for_file("bad")
    assert "null" in engine.worker.failures()[7]
    engine.step({}, closed={"bad": Closed(4, (0, 1, 2, 3))})
    assert engine.finish() == [] == os.listdir(tmp_path)


def test_an_end_that_goes_wrong_is_not_that_of_others(tmp_path, monkeypatch, caplog):
    engine = Engine(tmp_path, threads=1)  # so all are in one group

    def open_file(handle, **options):
        writer = FileSink.open(engine.worker._sink, handle, **options)
        if os.path.basename(handle) == "a":
            for end in ("commit", "abort"):
                monkeypatch.setattr(writer, end, raising(OSError("no folder")))
        return writer

    monkeypatch.setattr(engine.worker._sink, "open", open_file)
    batch = dict.fromkeys("abc", (0, 4))
    opened = {k: v for name in "abc" for k, v in engine.open(name, 4).items()}
    engine.step(batch, opened=opened)
    assert [name for name in engine.finish() if name in "abc"] == ["b", "c"]
    assert "the end of a sample failed" in caplog.text
    assert engine.worker._snapshots.memory.used_bytes == 0


def test_a_server_that_stops_while_a_file_is_to_be_opened_ends(tmp_path, monkeypatch):
    engine = Engine(tmp_path, opens_later=True)
    with monkeypatch.context() as patched:
        patched.setattr(engine.worker._opener, "submit", raising(SystemExit()))
        with pytest.raises(SystemExit):
            engine.step({"a": (0, 4)}, opened=engine.open("a", 4))
    within(5, engine.finish)
    assert os.listdir(tmp_path) == []


def test_rows_that_were_taken_are_given_back_where_the_server_stops(
    engine, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(
            engine.worker._backlog, "admit_all", raising(KeyboardInterrupt())
        )
        with pytest.raises(KeyboardInterrupt):
            engine.step({"a": (0, 4)}, opened=engine.open("a", 8))
    assert engine.worker._snapshots.memory.used_bytes == 0
    engine.step({"b": (0, 4)}, opened=engine.open("b", 4))
    assert engine.finish() == ["b"]


def test_a_full_disk_fails_the_sample_and_not_the_server(engine, monkeypatch, caplog):
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(os, "pwrite", raising(full))
    engine.step({"a": (0, 4)}, opened=engine.open("a", 4))
    assert engine.finish() == [] and os.listdir(engine.folder) == []
    assert "No space left on device" in caplog.text


def failing(monkeypatch, engine, name: str = "a") -> None:
    """Open and write a sample whose write fails; it is not told yet."""
    pwrite = os.pwrite

    def full(descriptor, *args):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".partial"):
            raise OSError(28, "No space left on device")
        return pwrite(descriptor, *args)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        engine.step({name: (0, 4)}, opened=engine.open(name, 4, serial=7))
        assert engine.worker._samples[name].done.wait(5)


def lock_is_free(path: str) -> bool:
    with open(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_failure_is_news_for_the_scheduler_once(engine, monkeypatch):
    failing(monkeypatch, engine)
    ((serial, reason),) = engine.worker.failures().items()
    assert serial == 7 and "No space left on device" in reason
    assert engine.worker.failures() == {}


def test_a_file_that_cannot_be_opened_is_news_at_once(engine):
    os.mkdir(engine.path("a"))  # of that name
    engine.step({"a": (0, 4)}, opened=engine.open("a", 4, serial=3))
    engine.worker.wait_for_file("a")
    assert list(engine.worker.failures()) == [3]
    assert os.listdir(engine.folder) == ["a"]


def test_a_client_that_was_told_finds_the_reason_in_the_lock_file(engine, monkeypatch):
    failing(monkeypatch, engine)
    lock = engine.path("a.lock")
    assert os.listdir(engine.folder) == ["a.lock"] and not lock_is_free(lock)
    engine.step({}, closed={"a": Closed(4, (0, 1, 2, 3))})
    assert lock_is_free(lock)
    with open(lock) as file:
        assert "No space left on device" in file.read()
    engine.step({"b": (0, 4)}, opened={"b": at(engine, "a", 4)})
    engine.finish()
    assert os.path.exists(engine.path("a"))
    with open(lock) as file:
        assert "No space left on device" not in file.read()


def test_of_a_failure_that_the_response_tells_nothing_is_left(engine, monkeypatch):
    failing(monkeypatch, engine)
    engine.step({}, dropped={"a": "No space left on device"})
    assert os.listdir(engine.folder) == []


def test_an_abort_is_no_news(engine):
    engine.step({"a": (0, 4)}, opened=engine.open("a", 8))
    engine.step({}, dropped={"a": "the request was aborted"})
    engine.finish()
    assert engine.worker.failures() == {} and os.listdir(engine.folder) == []


def test_an_earlier_pipeline_stage_takes_its_samples_up_before_its_forward(tmp_path):
    """The stage that completes them may be done with the step before this one is."""
    engine = Engine(tmp_path, early=True)
    engine.worker.begin(StepSamples(opened=engine.open("a", 4)))
    assert [name.endswith(".partial") for name in os.listdir(tmp_path)].count(True) == 1
    engine.worker.shutdown()
