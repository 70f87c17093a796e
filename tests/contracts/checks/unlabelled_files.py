"""A file says of which model and layers it is, and holds the same tensors as ever."""

import json

import torch
from safetensors import safe_open
from stock_halves import Engine, fail, rows_of
from vllm import __version__


def main() -> None:
    engine = Engine()
    engine.add("one", tokens=15)
    finished = engine.forward()
    rows = rows_of(engine.blocks("one"), engine.block_size, 15)
    engine.update(finished)
    engine.drain()
    path = engine.answers["one"]["hidden_states_path"]
    with safe_open(path, "pt") as file:
        labels = file.metadata()
        assert set(file.keys()) == {"hidden_states", "token_ids"}
    if not labels:
        fail("the file has no labels")
    assert labels.pop("specshim")
    model = engine.scheduler.vllm_config.model_config
    assert labels == {
        "model": model.model,
        "served_model_name": json.dumps([model.served_model_name]),
        "layer_ids": "[1, 4]",
        "vllm": __version__,
        "route": "cache",
        "num_tokens": "15",
    }
    tensors = engine.read("one")
    assert tensors["token_ids"].tolist() == list(range(15))
    assert torch.equal(tensors["hidden_states"][:, 1, 63], rows)


if __name__ == "__main__":
    main()
