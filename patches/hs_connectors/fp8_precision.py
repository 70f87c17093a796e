"""FP8 samples lose their small layers beside a massive activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import OPEN, Fingerprint, Patch, Target


def quantize_tensor_to_fp8(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Have each layer of each token scaled by itself, as if it were a token.

    A reader multiplies by what broadcasts, so scales [tokens, layers, 1] in place of
    [tokens, 1, 1] are right for an unpatched one as well.
    """
    tensor = args[0] if args else kwargs["tensor"]
    if tensor.dim() != 3:
        return wrapped(*args, **kwargs)
    packed, scales = wrapped(tensor.flatten(0, 1))
    return packed.view(tensor.shape), scales.view(*tensor.shape[:2], 1)


def dequantize_fp8_tensor(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Multiply in float32: the scales of either writer are not exact in bfloat16."""
    import torch

    named = dict(zip(("fp8_tensor", "scale", "dtype"), args, strict=False))
    named |= kwargs
    dtype = named.pop("dtype", torch.bfloat16)
    return wrapped(**named, dtype=torch.float32).to(dtype)


PATCH = Patch(
    id="fp8-precision",
    summary="one scale for all layers of a token flushes small layers to zero",
    why=(
        "With the FP8 backend the early layers of some tokens come back as zeros or "
        "with a bit or two: one massive activation sets the scale of all layers of its "
        "token. And every token is off by up to 0.2 %: its scale is rounded to "
        "bfloat16."
    ),
    see=(
        "Look at hidden_states_scales of a file: their shape is [tokens, 1, 1]. With "
        "the patch it is [tokens, layers, 1], a scale for each layer."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.9.0,<=0.9.0"),
    targets=(
        Target(
            name="hs_connectors.fp8_utils.quantize_tensor_to_fp8",
            wrapper=quantize_tensor_to_fp8,
            forms=(
                Fingerprint(
                    parameters=("tensor",),
                    contains=("reduce_dims = tuple(range(1, fp32.dim()))",),
                ),
            ),
            aliases=(
                "hs_connectors.fp8_hidden_states_connector.quantize_tensor_to_fp8",
            ),
        ),
        Target(
            name="hs_connectors.fp8_utils.dequantize_fp8_tensor",
            wrapper=dequantize_fp8_tensor,
            forms=(
                Fingerprint(
                    parameters=("fp8_tensor", "scale", "dtype"),
                    contains=("fp8_tensor.to(dtype) * scale.to(dtype)",),
                ),
            ),
            aliases=("hs_connectors.transfer.dequantize_fp8_tensor",),
        ),
    ),
    processes=("worker", "trainer"),
    remove_when=OPEN,
)
