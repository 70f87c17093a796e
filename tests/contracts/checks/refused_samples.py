"""Refused served files go, cached ones stay, and NaN is upstream's to decide."""

import json
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainer_side import MODEL, arrow_dataset, prepared, server, states, write

RIGHT, OTHER = json.dumps([2, 14, 25, 28]), json.dumps([2, 15, 25, 28])


def loaded(dataset: Any, row: int) -> bool:
    with warnings.catch_warnings(record=True):
        return isinstance(dataset[row], dict)


def main() -> None:
    from specshim import guard

    folder = prepared(Path(tempfile.mkdtemp()), rows=8)
    cached = folder / "hidden_states" / "hs_2.safetensors"
    write(cached, states(), 2, model=MODEL, layer_ids=OTHER)

    def answer(tokens: list[int]) -> str:
        row = tokens[0] // 100
        hidden = states()
        if row == 1:
            hidden[5] = float("nan")
        header = {"model": MODEL, "layer_ids": OTHER if row == 0 else RIGHT}
        return str(
            write(folder / "served" / f"{row}.safetensors", hidden, row, **header)
        )

    with server(answer) as endpoint:
        dataset = arrow_dataset(folder, vllm_endpoint=endpoint, model=MODEL)
        dataset.specshim_expected = guard.Expected(layer_ids=(2, 14, 25, 28))
        assert loaded(dataset, 3)
        assert not loaded(dataset, 0)
        assert not loaded(dataset, 2)
        assert cached.exists()
        # Without `nan-kills-training`, 0.7 raises again what it was told of NaN.
        try:
            assert not loaded(dataset, 1)
            raised = ""
        except ValueError as error:
            raised = str(error)
        assert raised.startswith("Hidden states refused") == (
            version("speculators").startswith("0.7.")
        ), raised
    left = list((folder / "served").iterdir())
    assert not left, left


if __name__ == "__main__":
    main()
