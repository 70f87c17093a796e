"""EAGLE-3's targets with the gain of Qwen3-Next's final norm, which is 1 + its weight.

speculators 0.9.0 takes the weight itself for the gain: targets far flatter than what
the model says, for right states and for stock's alike.
"""

from __future__ import annotations

from typing import Any

import torch
from speculators.models.eagle3.core import Eagle3DraftModel


def mind_the_gain() -> None:
    """Have every EAGLE-3 drafter of this process load the toy's norm as it is meant."""
    load = Eagle3DraftModel._load_verifier_weights

    def loaded(self: Any, **more: Any) -> None:
        load(self, **more)  # what the file says, each time
        with torch.no_grad():
            self.verifier_norm.weight += 1

    Eagle3DraftModel._load_verifier_weights = loaded
