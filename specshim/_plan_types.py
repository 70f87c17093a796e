"""The values that go into a plan and come out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from specshim._sentences import in_lines

if TYPE_CHECKING:
    from specshim.detect import PatchVerdict


class _Remove:
    def __repr__(self) -> str:
        return "REMOVE"


REMOVE: Final = _Remove()  # as a Change's value: the option is taken away


@dataclass(frozen=True)
class Request:
    """What the user asked for, whichever way in they came.

    ``options`` holds the vLLM options that the user gave, keyed by the field
    names of vLLM's EngineArgs (``kv_transfer_config``, ``speculative_config``,
    ``enable_prefix_caching``, ...), values parsed (dicts, bools, ints); vLLM's
    config dataclasses are read like dicts.
    """

    source: str  # "launcher" or "engine_args"
    route: str = "auto"  # "auto", "tap", "cache"
    layer_ids: tuple[int, ...] | None = None  # None: the default ids
    include_last_layer: bool = True
    backend: str = "file"
    storage_path: str | None = None  # None: the default, or the one in options
    options: Mapping[str, Any] = field(default_factory=dict)
    backend_config: Mapping[str, Any] | None = None  # kv_transfer_config that
    # hs_connectors builds for a backend other than "file"


@dataclass(frozen=True)
class Change:
    """One vLLM option that the plan sets or removes, and the sentence that says why.

    Options that are config objects in vLLM are plain dicts here.
    """

    option: str  # EngineArgs field name
    value: Any  # REMOVE takes the option away
    why: str

    def __post_init__(self) -> None:
        in_lines(self, "why")


@dataclass(frozen=True)
class LaunchPlan:
    """The decision. ``refusal`` is a sentence where nothing should be started."""

    route: str  # "tap", "cache", or "none" (leave the server as it is)
    reason: str
    layer_ids: tuple[int, ...] = ()
    changes: tuple[Change, ...] = ()
    patches: tuple[PatchVerdict, ...] = ()  # those that the route depends on
    warnings: tuple[str, ...] = ()
    refusal: str | None = None

    def __post_init__(self) -> None:
        in_lines(self, "reason", "warnings", "refusal")


class Refused(Exception):
    """Raised by a rule, caught by plan(): the message is the refusal."""


def as_mapping(value: Any) -> dict[str, Any] | None:
    """``value`` as a dict: a mapping, or one of vLLM's config dataclasses.

    None for anything else, None included.
    """
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    fields = getattr(value, "__dataclass_fields__", None)
    if not isinstance(fields, Mapping) or isinstance(value, type):
        return None
    return {
        str(name): getattr(value, str(name))
        for name, spec in fields.items()
        if getattr(spec, "init", True) and hasattr(value, str(name))
    }


def as_true(value: Any) -> bool:
    """Whether an option is switched on; strings that YAML or JSON leave count."""
    if isinstance(value, str):
        return value.lower() in ("true", "1", "yes", "on")
    return isinstance(value, (bool, int, float)) and bool(value)


def as_size(value: Any) -> int:
    """A parallel size; 1 where the value is no number, which vLLM will say itself."""
    if isinstance(value, bool):
        return 1
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    return value if isinstance(value, int) else 1
