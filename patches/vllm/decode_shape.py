"""A decode step returns two draft tokens per request where vLLM expects one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import Fingerprint, Patch, Target


def propose(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The draft is the target's own token: the first column, ``[requests, 1]``."""
    result = wrapped(*args, **kwargs)
    if isinstance(result, tuple):  # 0.17: [requests, columns, 1], and the connector's
        drafts, transferred = result
        return drafts.flatten(1)[:, :1], transferred
    return result[:, :1]


PARAMETERS = ("self", "sampled_token_ids", "target_hidden_states")

PATCH = Patch(
    id="decode-shape",
    summary="generating more than one token stops the engine",
    why=(
        "With max_tokens above 1 the engine stops with a RuntimeError about tensor "
        "sizes: after a decode step the draft tokens are [requests, 2], and vLLM has "
        "room for [requests, 1]."
    ),
    see=(
        "A request with max_tokens=2 stops the engine with a RuntimeError (output "
        "with shape [.., 1] doesn't match), one with max_tokens=1 does not. With the "
        "patch both are answered."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.17.0,<0.20.0"),
    targets=(
        Target(
            name=(
                "vllm.v1.spec_decode.extract_hidden_states"
                ".ExtractHiddenStatesProposer.propose"
            ),
            wrapper=propose,
            forms=(
                Fingerprint(
                    parameters=PARAMETERS,
                    contains=(" return sampled_token_ids",),
                    lacks=("sampled_token_ids[:, :1]", "sampled_token_ids.unsqueeze"),
                ),
                Fingerprint(
                    parameters=PARAMETERS,
                    contains=("sampled_token_ids.unsqueeze(-1), kv_connector_output",),
                ),
            ),
            fixed=Fingerprint(contains=("sampled_token_ids[:, :1]",)),
        ),
    ),
    processes=("worker",),
    remove_when="vllm>=0.20.0",
)
