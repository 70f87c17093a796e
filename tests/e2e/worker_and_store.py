"""Runs in an environment with hs_connectors and Mooncake: both halves of the tap's
connector over a real store, step by step; the capture buffer is filled by hand.

Standard input: {"master": "host:port"}.
"""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import torch
from hs_connectors.mooncake_store import MooncakeHiddenStatesStore, MooncakeStoreConfig

from specshim.tap.mooncake import MooncakePlaces, MooncakeSink, RowShape
from specshim.tap.samples import Samples, StepSamples
from specshim.tap.taps import Taps
from specshim.tap.worker import TapWorker, WorkerSettings

ROW = RowShape(2, 8, torch.float32)


class Engine:
    """Scheduler's and worker's half; row values name request and token."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.places = MooncakePlaces(ROW)
        self.samples = Samples(self.places, sync=False)
        self.runner = types.SimpleNamespace(
            input_batch=types.SimpleNamespace(req_ids=[]),
            query_start_loc=types.SimpleNamespace(np=[0]),
        )
        rows, runs = torch.zeros(64, 2, 8), torch.zeros(2, dtype=torch.int32)
        self.taps = Taps(self.runner, (1, 2), rows, runs, None, None, {})
        self.sink = MooncakeSink(ROW, settings)
        self.worker = TapWorker(self.taps, self.sink, WorkerSettings(threads=4))

    def step(self, batch: dict[str, tuple[int, int]], *, runs: int = 1) -> None:
        """``batch``: {name: (start, count)}."""
        self.worker.begin(StepSamples())
        starts, row = [], 0
        for name, (start, count) in batch.items():
            self.samples.schedule(name, start, count)
            starts.append(row)
            self.taps.rows[row : row + count] = value(name, start, count)
            row += count
        self.runner.input_batch.req_ids = list(batch)
        self.runner.query_start_loc.np = [*starts, row]
        self.taps.runs += runs
        self.worker.step(self.samples.take_step())


def value(name: str, start: int, count: int) -> torch.Tensor:
    tokens = torch.arange(start, start + count, dtype=torch.float32)
    return (int(name) + tokens / 64)[:, None, None].expand(count, 2, 8)


def main() -> None:
    settings = {
        "local_hostname": "127.0.0.1",
        "master_server_address": json.load(sys.stdin)["master"],
        "global_segment_size": 32 << 20,
        "local_buffer_size": 32 << 20,
    }
    engine = Engine(settings)
    samples = engine.samples
    samples.open("1", [1] * 5, 5, {})
    samples.open("2", [2] * 6, 6, {"include_output_tokens": True})
    samples.open("3", [3] * 4, 4, {})
    samples.open("4", [4] * 8, 8, {})
    engine.step({"1": (0, 3), "2": (0, 6), "3": (0, 4), "4": (0, 4)})
    engine.step({"2": (6, 1), "1": (3, 2)})
    engine.step({"4": (4, 4)}, runs=2)  # not tapped exactly once
    told = {name: samples.finish(name, [0] * 9, aborted=False) for name in "14"}
    told["2"] = samples.finish("2", [2] * 8, aborted=False)
    assert samples.finish("3", [3] * 5, aborted=True) is None  # after its last row
    engine.step({})

    reader = MooncakeHiddenStatesStore(MooncakeStoreConfig.from_dict(settings)).setup()

    def read(name: str) -> dict[str, torch.Tensor]:
        answer = told[name] or {}
        asked = answer if engine.places.form.manifests else answer["handle"]
        found: dict[str, torch.Tensor] = reader.get_sample(asked, timeout=60)
        return found

    for name, rows in (("1", 5), ("2", 7)):
        assert torch.equal(read(name)["hidden_states"], value(name, 0, rows))
        assert len(read(name)["token_ids"]) == rows
    try:
        read("4")
    except RuntimeError as error:
        assert "did not run exactly once" in str(error), error
    else:
        raise AssertionError("a sample that failed was read")
    engine.worker.shutdown()
    assert engine.sink.room.bytes == 0
    print("done")


if __name__ == "__main__":
    main()
