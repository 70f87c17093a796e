"""A training script that only imports specshim first; prints what it is warned of."""

import specshim  # isort: skip

import sys
import tempfile
import warnings
from pathlib import Path

from speculators.train.data import ArrowDataset, CollateFn

sys.path.insert(0, sys.argv[1])
import torch
from trainer_side import HIDDEN, prepared, states, write

folder = prepared(Path(tempfile.mkdtemp()))
for row, hidden in enumerate([torch.zeros_like(states()), states()]):
    write(folder / "hidden_states" / f"hs_{row}.safetensors", hidden, row)
dataset = ArrowDataset(max_len=64, datapath=folder, on_missing="skip")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    batch = CollateFn(64, HIDDEN)([dataset[0], dataset[1]])
texts = [str(warning.message) for warning in said]
print(*(text for text in texts if text.startswith("Sample")), sep="\n")
rows = batch["verifier_last_hidden_states"][0, :24]
print("trained on:", "the good sample" if torch.equal(rows, states()[:, -1]) else rows)
state = specshim.status()["patches"].get("zero-states-in-the-cache", {})
print("patch:", state.get("state"))
