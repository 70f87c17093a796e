"""What the guard costs, next to loading the file. As a script, it prints the numbers.

Loading is what speculators 0.9 does with a file in the page cache until a batch is
there: map it, copy the rows of the drafter's layers out of the map (ArrowDataset), copy
those and the last layer's into a buffer of zeros (CollateFn). A disk takes longer.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file

from specshim import guard

TOKENS, LAYERS, HIDDEN = 4096, 5, 4096
IDS = (2, 14, 25, 27, 28)


def write(path: Path) -> None:
    states = torch.randn(TOKENS, LAYERS, HIDDEN, dtype=torch.bfloat16)
    save_file({"hidden_states": states, "token_ids": torch.arange(TOKENS)}, path)


def seconds(body: Callable[[], object], rounds: int) -> list[float]:
    body()
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        body()
        found.append(time.perf_counter() - start)
    return found


def measure(path: Path, rounds: int = 15) -> tuple[list[float], list[float]]:
    """Seconds of loading, and of the guard's check of what was loaded."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a data loader's worker
    try:
        sample = load_file(path)
        states, tokens = sample["hidden_states"], sample["token_ids"]
        expected = guard.Expected(layer_ids=IDS)

        def load() -> list[torch.Tensor]:
            fresh = load_file(path)["hidden_states"]
            batch = []
            for part in (fresh[:, :-1].flatten(1), fresh[:, -1]):
                batch.append(torch.zeros(part.shape, dtype=part.dtype))
                batch[-1][:] = part
            return batch

        def judge() -> None:
            guard.check(states, tokens, expected=expected)

        return seconds(load, rounds), seconds(judge, rounds)
    finally:
        torch.set_num_threads(threads)


def test_a_check_costs_little_of_a_load(tmp_path: Path) -> None:
    path = tmp_path / "hs_0.safetensors"
    write(path)
    load, judge = measure(path)
    path.unlink()
    # Some 0.5 % on an idle machine; a pass over all values would cost 30 % or more.
    assert min(judge) < 0.02 * min(load)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "hs_0.safetensors")
        write(file)
        times = measure(file, rounds=40)
    for name, found in zip(("load", "guard"), times, strict=True):
        best, middle = min(found) * 1e3, statistics.median(found) * 1e3
        print(f"{name}: best {best:.2f} ms, median {middle:.2f} ms")
    shares = [min(times[1]) / min(times[0]), *map(statistics.median, times)]
    print(f"share: best {shares[0]:.2%}, median {shares[2] / shares[1]:.2%}")
