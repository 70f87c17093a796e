"""The Mooncake connector does not find hidden states among packed pages."""

from __future__ import annotations

from dataclasses import replace

from packaging.specifiers import SpecifierSet

from specshim.patching import OPEN

from ..vllm import mla_verifier_group_lookup as original

(FIND,) = original.PATCH.targets
NAME = (
    "hs_connectors.mooncake_hidden_states_connector"
    ".MooncakeHiddenStatesConnector._find_cache_kv_group_id"
)

PATCH = replace(
    original.PATCH,
    id="mla-verifier-group-lookup-mooncake",
    summary="the Mooncake connector refuses DeepSeek-V4: no group found",
    affects=SpecifierSet(">=0.7.0,<=0.9.0"),
    targets=(replace(FIND, name=NAME),),
    remove_when=OPEN,
)
