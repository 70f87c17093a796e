"""``speculators train`` with specshim's guard, and on the CPU where there is no GPU.

    python examples/train.py --verifier-name-or-path MODEL --data-path DATA ...
    torchrun --nproc_per_node 2 examples/train.py ...

The flags are those of ``speculators train`` (speculators 0.9). On the CPU it takes
``--draft-attn-impl eager --loss-implementation eager --hidden-states-dtype float32``.
"""

from __future__ import annotations

import specshim  # isort: skip  # noqa: F401  # before speculators: the guard of samples

import sys
from typing import Any

import torch
from speculators.train import cli
from speculators.train.config import TrainConfig


class OnCpu(cli.Trainer):
    """The trainer on a device of the user's choice; its own is the number of a GPU."""

    def setup_trainer(self) -> None:
        super().setup_trainer()
        self.local_rank: Any = torch.device("cpu")
        self.device_type = "cpu"


def without_gpu(trainer: type[OnCpu] = OnCpu) -> None:
    """Have speculators train with ``trainer`` on a machine without a GPU."""
    torch.accelerator.synchronize = lambda *_: None  # times steps; nothing to await
    cli.Trainer = trainer


def main() -> None:
    if not torch.accelerator.is_available():
        without_gpu()
    cli.main(TrainConfig.resolve(sys.argv[1:]))


if __name__ == "__main__":
    main()
