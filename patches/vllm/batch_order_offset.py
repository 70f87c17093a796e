"""A prompt that joins running requests is saved with their rows.

The correction is that of prefix-cache-cross-request, which says why. To run without
it, switch off both.
"""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from specshim.patches.vllm.prefix_cache_cross_request import TARGETS
from specshim.patching import Patch

PATCH = Patch(
    id="batch-order-offset",
    summary="a prompt that joins running requests is saved with rows of theirs",
    why=(
        "With max_tokens above 1, states belong to other requests: the connector "
        "takes the prompts' slots from the start of the batch, where vLLM keeps the "
        "requests that were running before."
    ),
    upstream=("vllm#43805",),
    affects=SpecifierSet(">=0.22.0,<0.24.0"),
    targets=TARGETS,
    processes=("engine core", "worker"),
    remove_when="vllm>=0.24.0",
)
