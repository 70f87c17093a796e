"""Samples of other layers, or of another model, do not reach the drafter."""

import json
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from speculators.models.eagle3 import Eagle3SpeculatorConfig
from speculators.train.trainer import Trainer
from torch.utils.data import DataLoader
from trainer_side import MODEL, arrow_dataset, prepared, server, states, write

RIGHT, OTHER = json.dumps([2, 14, 25, 28]), json.dumps([2, 15, 25, 28])


class Untrained(Trainer):
    """The real constructor, without a network and an optimiser to set up."""

    def setup_trainer(self) -> None:
        pass

    setup_model = setup_optimizer = setup_trainer


def is_sample(item: Any) -> bool:
    return isinstance(item, dict)


def kinds(items: list[Any]) -> bool:
    """A collate function that a spawned process can import: is it a sample?"""
    return is_sample(items[0])


def main() -> None:
    folder = prepared(Path(tempfile.mkdtemp()), rows=8)
    cache = folder / "hidden_states"
    headers = [
        {"model": MODEL, "layer_ids": RIGHT},
        {"model": MODEL, "layer_ids": OTHER},
        {"model": "meta-llama/Llama-3.1-8B-Instruct", "layer_ids": RIGHT},
        {},
    ]
    for row, header in enumerate(headers):
        write(cache / f"hs_{row}.safetensors", states(row), row, **header)

    def answer(tokens: list[int]) -> str:
        row = tokens[0] // 100
        header = {"model": MODEL, "layer_ids": RIGHT if row == 4 else OTHER}
        return str(write(folder / "one.safetensors", states(), row, **header))

    with server(answer) as endpoint, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dataset = arrow_dataset(folder, model=MODEL, vllm_endpoint=endpoint)
        loader = DataLoader(dataset, num_workers=0)
        config = Eagle3SpeculatorConfig(eagle_aux_hidden_state_layer_ids=[2, 14, 25])
        settings = SimpleNamespace(
            local_rank=0,
            is_distributed=False,
            resume_from_checkpoint=False,
            save_path=str(folder / "checkpoints"),
            fsdp_shard=False,
        )
        Untrained(SimpleNamespace(config=config), settings, loader)
        found = [is_sample(dataset[row]) for row in range(6)]
    text = "\n".join(str(warning.message) for warning in said)
    assert found == [True, False, False, True, True, False], f"taken: {found} {text}"
    assert "layers 2, 15, 25, 28, the trainer expects 2, 14, 25, any" in text, text
    assert "states of meta-llama/Llama-3.1-8B-Instruct, the trainer" in text, text
    assert "do not say which model and layers they hold" in text, text
    dataset.client = None  # which cannot be pickled
    # A worker process of the loader imports nothing of ours but what the dataset holds.
    workers = DataLoader(
        dataset,
        batch_size=1,
        sampler=[0, 1, 2],
        num_workers=1,
        multiprocessing_context="spawn",
        collate_fn=kinds,
    )
    assert list(workers) == [True, False, False]


if __name__ == "__main__":
    main()
