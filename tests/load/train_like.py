"""Runs in a speculators environment: its own dataset and data loader ask the server.

Standard input: {"endpoint", "folder", "references", "samples", "workers"};
prints one line of JSON with what the training loop would have seen.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from hs_connectors import FileTransfer
from speculators.train.data import ArrowDataset
from speculators.train.dataloader import _setup_dataloader

PACKED = 2048  # tokens of a batch


def write_dataset(folder: Path, prompts: list[list[int]], samples: int) -> None:
    """Beginnings of ``prompts`` as speculators' preprocessing leaves them."""
    source = random.Random(1)
    rows = []
    for index in range(samples):
        prompt = prompts[index % len(prompts)]
        rows.append(prompt[: source.randint(4, len(prompt))])
    columns = {
        "input_ids": rows,
        "loss_mask": [[1] * len(row) for row in rows],
        "seq_len": [len(row) for row in rows],
    }
    dataset = Dataset.from_dict(columns)
    dataset.set_format("torch", columns=["input_ids", "loss_mask"])
    dataset.save_to_disk(str(folder))


class Checker:
    """Takes packed batches apart and holds each document against its reference."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data
        self._known = {tuple(p[:4]): i for i, p in enumerate(data["prompts"])}
        self.right = self.wrong = self.dropped = 0
        self.worst = 0.0

    def batch(self, batch: dict[str, Any]) -> None:
        """One batch of the loader."""
        self.dropped += int(batch["error_records"])
        documents = batch["document_ids"][0]
        for number in range(int(documents.max()) + 1):
            self._document(batch, documents == number)

    def _document(self, batch: dict[str, Any], rows: Any) -> None:
        ids = batch["input_ids"][0][rows].tolist()
        index = self._known.get(tuple(ids[:4]))
        if index is None or ids != self._data["prompts"][index][: len(ids)]:
            self.wrong += 1
            return
        states = self._data["states"][index][: len(ids)]
        actual = torch.cat(
            [
                batch["hidden_states"][0][rows],
                batch["verifier_last_hidden_states"][0][rows],
            ],
            dim=1,
        ).view_as(states)
        error = (actual - states).norm(dim=(0, 2)) / states.norm(dim=(0, 2))
        self.worst = max(self.worst, float(error.max()))
        right = bool((error <= self._data["limits"]).all())
        self.right += right
        self.wrong += not right


def main() -> None:
    job = json.load(sys.stdin)
    data = torch.load(job["references"], weights_only=True)
    folder = Path(job["folder"])
    write_dataset(folder, data["prompts"], job["samples"])
    dataset = ArrowDataset(
        max_len=PACKED,
        datapath=folder,
        transfer=FileTransfer(folder / "cached"),
        vllm_endpoint=job["endpoint"],
        on_missing="generate",
        hidden_states_dtype=torch.float32,
    )
    loader = _setup_dataloader(
        dataset,
        PACKED,
        hidden_size=data["states"][0].shape[-1],
        num_workers=job["workers"],
        num_target_layers=len(data["layer_ids"]) - 1,
    )
    checker = Checker(data)
    start = time.monotonic()
    for batch in loader:
        checker.batch(batch)
    result = {
        "samples": job["samples"],
        "right": checker.right,
        "wrong": checker.wrong,
        "dropped": checker.dropped,
        "worst": checker.worst,
        "seconds": round(time.monotonic() - start, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
