"""A cached file of zeros is no sample; a good one beside it is."""

import tempfile
import warnings
from pathlib import Path

import torch
from trainer_side import arrow_dataset, prepared, states, write


def main() -> None:
    folder = prepared(Path(tempfile.mkdtemp()))
    cache = folder / "hidden_states"
    write(cache / "hs_0.safetensors", torch.zeros_like(states()), 0)
    write(cache / "hs_1.safetensors", states(), 1)
    one_layer = states()[:, :1].expand(-1, 4, -1).contiguous()
    write(cache / "hs_2.safetensors", one_layer, 2)
    dataset = arrow_dataset(folder, on_missing="raise")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        good, zeros, broadcast = dataset[1], dataset[0], dataset[2]
    assert torch.equal(good["hidden_states"], states()[:, :-1].flatten(1))
    assert not isinstance(zeros, dict), "zeros were taken for a sample"
    assert not isinstance(broadcast, dict), "one layer was taken for four"
    text = "\n".join(str(warning.message) for warning in said)
    assert "hs_0.safetensors" in text and "all 24 rows are zero" in text, text
    assert "slot 0 of 0..3 and slot 1 of 0..3 are identical" in text, text


if __name__ == "__main__":
    main()
