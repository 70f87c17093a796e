"""What is installed here, and what the model is: facts only, no decisions."""

from specshim.detect.environment import Environment, PatchVerdict, detect_environment
from specshim.detect.model import (
    LayerGroup,
    ModelFacts,
    ModelNotFound,
    detect_model,
    group_layers,
    model_facts,
)

__all__ = [
    "Environment",
    "LayerGroup",
    "ModelFacts",
    "ModelNotFound",
    "PatchVerdict",
    "detect_environment",
    "detect_model",
    "group_layers",
    "model_facts",
]
