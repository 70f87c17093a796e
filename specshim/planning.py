"""plan(): which route, which arguments, which patches, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specshim.detect import Environment, ModelFacts

REMOVE = object()  # as a Change's value: the option is taken away


@dataclass(frozen=True)
class Request:
    """What the user asked for, whichever way in they came.

    ``options`` holds the vLLM options that the user gave, keyed by the field
    names of vLLM's EngineArgs (``kv_transfer_config``, ``speculative_config``,
    ``enable_prefix_caching``, ...), values parsed (dicts, bools, ints).
    """

    source: str  # "launcher" or "engine_args"
    route: str = "auto"  # "auto", "tap", "cache"
    layer_ids: tuple[int, ...] | None = None  # None: the default ids
    include_last_layer: bool = True
    backend: str = "file"
    storage_path: str = "/tmp/hidden_states"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """One vLLM option that the plan sets or removes, and the sentence that says why."""

    option: str  # EngineArgs field name
    value: Any  # REMOVE takes the option away
    why: str


@dataclass(frozen=True)
class LaunchPlan:
    """The decision. ``refusal`` is a sentence where nothing should be started."""

    route: str  # "tap", "cache", or "none" (leave the server as it is)
    reason: str
    layer_ids: tuple[int, ...] = ()
    changes: tuple[Change, ...] = ()
    patches: tuple[Any, ...] = ()
    warnings: tuple[str, ...] = ()
    refusal: str | None = None


def plan(environment: Environment, model: ModelFacts, request: Request) -> LaunchPlan:
    """Decide. Imports neither torch nor vLLM, reads no file, raises nothing."""
    raise NotImplementedError
