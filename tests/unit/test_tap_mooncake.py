"""What a Mooncake client is told, and the bound on samples that are put together."""

from __future__ import annotations

import json
import threading
import time
import types

import pytest

torch = pytest.importorskip("torch")
store = pytest.importorskip("hs_connectors.mooncake_store")

from specshim.tap.layers import TapRefused
from specshim.tap.mooncake import Form, MooncakePlaces, MooncakeSink, RowShape
from specshim.tap.room import Room
from specshim.tap.samples import Samples, StepSamples
from specshim.tap.taps import Taps
from specshim.tap.worker import TapWorker, WorkerSettings

ROW = RowShape(2, 8, torch.bfloat16)


def test_the_client_is_told_the_manifest_of_its_sample():
    samples = Samples(MooncakePlaces(ROW), sync=False)
    samples.open("cmpl-a/1-0", [7, 8, 9], 3, {"include_output_tokens": True})
    samples.schedule("cmpl-a/1-0", 0, 3)
    samples.schedule("cmpl-a/1-0", 3, 1)
    opened = samples.take_step().opened["cmpl-a/1-0"]
    told = samples.finish("cmpl-a/1-0", [7, 8, 9, 1, 2], aborted=False)
    assert told == json.loads(json.dumps(told))  # it travels in the response
    assert told["handle"] == opened.path and told["handle"].startswith("kcmpl-a_1-0-")
    assert told["version"] == store.VERSION
    assert told["metadata"] == {
        "num_tokens": 4,
        "total_aligned_bytes": 192,
        "extract_mode": "all",
    }
    expected = {"shape": [4, 2, 8], "dtype": "torch.bfloat16", "nbytes": 128}
    assert told["tensors"]["hidden_states"] == {**expected, "offset": 0}
    expected = {"shape": [4], "dtype": "torch.int64", "nbytes": 32}
    assert told["tensors"]["token_ids"] == {**expected, "offset": 128}


def test_keys_are_never_used_again():
    places = MooncakePlaces(ROW)
    assert places.choose("a", {}) != places.choose("a", {})
    assert places.choose("a.b", {})[:5] == places.choose("a_b", {})[:5]
    with pytest.raises(ValueError, match="samples go to Mooncake"):
        places.choose("a", {"hidden_states_path": "/x"})


def test_siblings_are_told_what_the_first_is_told():
    samples = Samples(MooncakePlaces(ROW), sync=False)
    for index in (0, 1):
        samples.open(f"cmpl-a-{index}", [1, 2], 2, {})
        samples.schedule(f"cmpl-a-{index}", 0, 2)
    early = samples.finish("cmpl-a-1", [1, 2, 3], aborted=False)
    assert samples.finish("cmpl-a-0", [1, 2, 3], aborted=False) == early


def begun(call, *args) -> tuple[threading.Thread, list[Exception]]:
    """A writer's thread that has come as far as it can for now."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            call(*args)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(0.2)
    return thread, errors


def ended(thread: threading.Thread) -> bool:
    thread.join(5)
    return not thread.is_alive()


def test_room_is_waited_for_only_while_samples_leave():
    room = Room(100, writers=4)
    room.take("a", 80)
    with pytest.raises(MemoryError, match="raise max_buffer_bytes"):
        room.take("b", 30)  # "a" may be waiting for the caller: never wait for it
    room.leaving("a")
    waiting, errors = begun(room.take, "b", 30)
    assert waiting.is_alive()
    room.release(80)
    room.left("a")
    assert ended(waiting) and errors == [] and room.bytes == 30


def test_a_sample_that_leaves_does_not_wait_for_itself():
    room = Room(100, writers=4)
    room.take("a", 80)
    room.leaving("a")
    waiting, errors = begun(room.take, "a", 30)
    assert ended(waiting) and isinstance(errors[0], MemoryError)


def test_samples_that_leave_do_not_wait_for_each_other():
    room = Room(100, writers=4)
    room.take("a", 50), room.take("b", 50)
    room.leaving("a"), room.leaving("b")
    first, errors = begun(room.take, "a", 30)
    assert first.is_alive()  # for "b"
    second, more = begun(room.take, "b", 30)
    assert len(errors + more) == 1  # one gives up, and what it holds will come free
    room.release(50)
    assert ended(first) and ended(second) and len(errors + more) == 1


def test_the_last_writer_never_waits():
    """What leaves may be queued behind the writers that wait."""
    room = Room(100, writers=2)
    room.take("a", 100)
    room.leaving("a")
    first, errors = begun(room.take, "b", 10)
    assert first.is_alive()
    second, more = begun(room.take, "c", 10)
    assert ended(second) and isinstance(more[0], MemoryError)
    assert first.is_alive() and errors == []
    room.release(100)
    room.left("a")
    assert ended(first) and errors == []


class Store:
    """Stands for the network: notes what is stored, once it may."""

    def __init__(self) -> None:
        self.stored: dict[str, dict] = {}
        self.may = threading.Event()
        self.may.set()

    def put_sample(self, address, tensors) -> None:
        self.may.wait(10)
        self.stored[address["handle"]] = {k: v.clone() for k, v in tensors.items()}

    def put_error(self, address, reason: str) -> None:
        self.stored[address["handle"] + ":error"] = reason

    def delete_sample(self, key: str) -> None:
        self.stored.pop(key, None), self.stored.pop(f"{key}:error", None)


def sink_of(max_bytes: int, writers: int = 4) -> MooncakeSink:
    sink = MooncakeSink.__new__(MooncakeSink)  # a store needs a running master
    sink.form, sink.row, sink.room = Form(), ROW, Room(max_bytes, writers)
    sink.store = Store()
    return sink


def piece(rows):
    return memoryview(rows.contiguous().view(torch.uint8).reshape(-1).numpy())


def test_a_complete_sample_makes_others_wait_from_its_end():
    sink = sink_of(10 * ROW.bytes)
    states = torch.randn(8, 2, 8).to(torch.bfloat16)
    first = sink.open("a", announced=True, rows=8)
    first.write(0, piece(states))
    first.ending()  # its last rows are there, and no thread has got to storing it
    second = sink.open("b", announced=True, rows=8)
    waiting, errors = begun(second.write, 0, piece(states))
    assert waiting.is_alive()
    first.commit(8, range(8))
    assert ended(waiting) and errors == []
    second.commit(8, range(8))
    assert sorted(sink.store.stored) == ["a", "b"] and sink.room.bytes == 0
    with pytest.raises(MemoryError):  # nothing counts as leaving any more
        sink.room.take("c", 11 * ROW.bytes)


def test_growth_is_accounted_for_in_full_while_both_buffers_are_there():
    sink = sink_of(11 * ROW.bytes)
    states = torch.randn(8, 2, 8).to(torch.bfloat16)
    writer = sink.open("a", announced=True)
    writer.write(0, piece(states[:4]))
    with pytest.raises(MemoryError):  # 4 + 8 rows at the same time
        writer.write(4, piece(states[4:]))
    assert sink.room.bytes == 4 * ROW.bytes
    sink.room.max_bytes = 12 * ROW.bytes
    writer.write(4, piece(states[4:]))
    assert sink.room.bytes == 8 * ROW.bytes
    writer.commit(8, [])
    assert torch.equal(sink.store.stored["a"]["hidden_states"], states)


def test_a_sample_of_known_size_never_grows():
    sink = sink_of(8 * ROW.bytes)
    states = torch.randn(8, 2, 8).to(torch.bfloat16)
    writer = sink.open("a", announced=True, rows=8)
    for start in range(8):
        writer.write(start, piece(states[start : start + 1]))
    writer.commit(8, [])
    assert torch.equal(sink.store.stored["a"]["hidden_states"], states)


def test_pieces_that_wait_for_their_sample_count_as_waiting_writers():
    sink = sink_of(10 * ROW.bytes, writers=2)
    states = torch.zeros(8, 2, 8, dtype=torch.bfloat16)
    first = sink.open("a", announced=True, rows=8)
    first.write(0, piece(states))
    first.ending()
    second = sink.open("b", announced=True)
    waiting, errors = begun(second.write, 0, piece(states))
    assert waiting.is_alive()
    behind, more = begun(second.write, 8, piece(states))
    assert ended(waiting) and isinstance(errors[0], MemoryError)
    first.commit(8, [])  # by the thread that is free again
    assert ended(behind) and isinstance(more[0], MemoryError)  # 16 rows never fit


class Engine:
    """Both halves of the connector over the store."""

    def __init__(self, max_bytes: int = 1 << 20, **settings) -> None:
        self.samples = Samples(MooncakePlaces(ROW), sync=False)
        self.runner = types.SimpleNamespace(
            input_batch=types.SimpleNamespace(req_ids=[]),
            query_start_loc=types.SimpleNamespace(np=[0]),
        )
        rows = torch.ones(64, 2, 8, dtype=torch.bfloat16)
        self.runs = torch.zeros(2, dtype=torch.int32)
        taps = Taps(self.runner, (1, 2), rows, self.runs, None, None, {})
        self.sink = sink_of(max_bytes)
        self.stored = self.sink.store.stored
        self.worker = TapWorker(taps, self.sink, WorkerSettings(threads=4, **settings))

    def step(self, batch: dict[str, tuple[int, int]], *, runs: int = 1) -> None:
        self.worker.begin(StepSamples())
        ends = [0]
        for name, (start, count) in batch.items():
            self.samples.schedule(name, start, count)
            ends.append(ends[-1] + count)
        self.runner.input_batch.req_ids = list(batch)
        self.runner.query_start_loc.np = ends
        self.runs += runs
        self.worker.step(self.samples.take_step())


@pytest.fixture
def failed():
    """An engine whose sample "a" has failed in the worker, which nobody is told yet."""
    engine = Engine()
    engine.samples.open("a", [1] * 8, 8, {})
    engine.step({"a": (0, 4)})
    engine.step({"a": (4, 4)}, runs=2)  # not tapped exactly once
    engine.worker._samples["a"].done.wait(5)
    return engine


def test_a_failure_is_told_once_the_client_knows_where_to_look(failed):
    assert failed.stored == {}
    told = failed.samples.finish("a", [1] * 9, aborted=False)
    failed.step({})
    failed.worker.shutdown()
    (marker,) = failed.stored.items()
    assert marker[0] == told["handle"] + ":error"
    assert "did not run exactly once" in marker[1]
    assert failed.worker._samples == {} and failed.sink.room.bytes == 0


def test_a_failed_sample_of_an_aborted_request_leaves_no_marker(failed):
    failed.samples.finish("a", [1] * 9, aborted=True)
    failed.step({})
    failed.worker.shutdown()
    assert failed.stored == {} and failed.worker._samples == {}


def test_a_sample_that_fails_in_the_forwards_thread_is_told_as_well():
    engine = Engine()
    engine.samples.open("a", [1] * 8, 8, {})
    engine.step({"a": (0, 4)})
    engine.samples.schedule("a", 4, 4)
    engine.runner.input_batch.req_ids = ["b"]
    engine.worker.step(engine.samples.take_step())
    assert engine.stored == {} and list(engine.worker._samples) == ["a"]
    told = engine.samples.finish("a", [1] * 9, aborted=False)
    engine.step({})
    engine.worker.shutdown()
    assert list(engine.stored) == [told["handle"] + ":error"]
    assert engine.worker._samples == {}


def test_a_failure_after_the_client_was_told_is_told_at_once():
    engine = Engine()
    engine.sink.store.may.clear()
    engine.sink.store.put_sample = lambda *args: (
        engine.sink.store.may.wait(10) and 1 / 0
    )
    engine.samples.open("a", [1] * 4, 4, {})
    engine.step({"a": (0, 4)})
    told = engine.samples.finish("a", [1] * 5, aborted=False)
    engine.step({})  # while the sample is being stored
    assert engine.stored == {}
    engine.sink.store.may.set()
    engine.worker.shutdown()
    assert list(engine.stored) == [told["handle"] + ":error"]


def test_a_stopping_server_tells_only_those_who_ask():
    engine = Engine()
    engine.samples.open("a", [1] * 8, 8, {})
    engine.step({"a": (0, 4)})
    engine.worker.shutdown()
    assert engine.stored == {} and engine.sink.room.bytes == 0


def test_a_sample_that_waits_to_be_stored_makes_others_wait():
    engine = Engine(10 * ROW.bytes)
    for name in "ab":
        engine.samples.open(name, [1] * 8, 8, {})
    engine.sink.store.may.clear()
    engine.step({"a": (0, 8), "b": (0, 8)})
    engine.sink.store.may.set()
    told = [engine.samples.finish(name, [1] * 9, aborted=False) for name in "ab"]
    engine.step({})
    engine.worker.shutdown()
    assert sorted(engine.stored) == sorted(answer["handle"] for answer in told)


def test_an_unknown_way_of_storing_is_refused(monkeypatch):
    class Later(store.MooncakeHiddenStatesStore):
        def put_sample(self, sample):
            raise NotImplementedError

    monkeypatch.setattr(store, "MooncakeHiddenStatesStore", Later)
    with pytest.raises(TapRefused, match="unknown to specshim"):
        Form()


def test_a_sample_that_a_step_completes_makes_room_for_those_before_it():
    """Though the step's rows come in parts, and its own in the last of them."""
    sample = 32 * ROW.bytes
    engine = Engine(sample, max_backlog_bytes=2 * sample)  # four blocks of 16 rows
    engine.samples.open("whole", [1] * 32, 32, {})
    engine.step({"whole": (0, 8)})
    while engine.sink.room.bytes < sample:
        time.sleep(0.01)
    engine.samples.open("begun", [1] * 32, 32, {})
    engine.step({"begun": (0, 24), "whole": (8, 24)})
    engine.step({"begun": (24, 8)})
    told = [
        engine.samples.finish(name, [1] * 33, aborted=False)["handle"]
        for name in ("whole", "begun")
    ]
    engine.step({})
    engine.worker.shutdown()
    assert sorted(engine.stored) == sorted(told)
