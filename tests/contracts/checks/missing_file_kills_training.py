"""Samples without files are skipped, with the server's reason; the next one is taken.

What the server knew with its answer is in a path that cannot exist, which every client
names; what it learnt later is in the lock file, which only ours reads.
"""

import logging
import os
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainer_side import MODEL, arrow_dataset, prepared, server, states, write

NOWHERE = "/dev/null/no hidden states: the disk is full"
PATCHED = os.environ.get("SPECSHIM") != "0"
LOCKS = not version("speculators").startswith("0.5.") or PATCHED


def load(dataset: Any, row: int) -> tuple[Any, str]:
    """What the dataset returns, and all that it says."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    logging.getLogger("speculators").addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sample = dataset[row]
    said += [str(warning.message) for warning in caught]
    return sample, " ".join([*said, getattr(sample, "reason", "")])


def main() -> None:
    folder = prepared(Path(tempfile.mkdtemp()), rows=8)
    served = folder / "served"
    served.mkdir()

    def answer(tokens: list[int]) -> str:
        row = tokens[0] // 100
        path = served / f"{row}.safetensors"
        if row == 0:
            return NOWHERE
        if row == 1:
            Path(f"{path}.lock").write_text("it could not be written")
        if row == 3:
            write(path, states(), row)
        return str(path)

    with server(answer) as endpoint:
        dataset = arrow_dataset(folder, vllm_endpoint=endpoint, model=MODEL)
        found = [load(dataset, row) for row in range(4)]
    samples, said = zip(*found, strict=True)
    assert [isinstance(sample, dict) for sample in samples] == [False] * 3 + [True]
    assert NOWHERE in said[0], said
    assert "1.safetensors" in said[1] and "2.safetensors" in said[2], said
    assert ("it could not be written" in said[1]) == PATCHED, said
    assert not LOCKS or not list(served.iterdir())


if __name__ == "__main__":
    main()
