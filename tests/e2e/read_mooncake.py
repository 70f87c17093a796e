"""Runs in an environment with hs_connectors and Mooncake: the trainer's real reader.

Standard input: {"master": "host:port", "answers": [kv_transfer_params, ...], "out":
file}; saves a list of samples, each {"hidden_states", "token_ids"} or an error's text.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from typing import Any

import torch
from hs_connectors import MooncakeBackend


def main() -> None:
    job = json.load(sys.stdin)
    parser = argparse.ArgumentParser()
    MooncakeBackend.add_train_args(parser)
    sizes = ("--mooncake-global-segment-gib", "0.0625")
    sizes += ("--mooncake-local-buffer-gib", "0.0625")
    args = parser.parse_args(["--mooncake-master", job["master"], *sizes])
    transfer = MooncakeBackend.from_train_args(args, "")
    transfer.setup()
    torch.save([read(transfer, answer) for answer in job["answers"]], job["out"])


def read(transfer: Any, answer: dict[str, Any]) -> Any:
    """A sample, or why there is none; nothing is left in the store."""
    (parameter,) = inspect.signature(transfer.get_generated).parameters
    asked = answer["handle"] if parameter == "handle" else answer
    try:
        return transfer.get_generated(asked)
    except RuntimeError as error:
        return str(error)
    finally:
        transfer.delete(answer["handle"])


if __name__ == "__main__":
    main()
