"""vLLM's EngineArgs as plain options, and a plan's changes put onto a copy."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from specshim import _vllm_facts as facts
from specshim._multi import tap_child
from specshim.planning import REMOVE, Change


def extracts(args: Any) -> bool:
    """Whether ``args`` ask for hidden states: by the method, or by a connector.

    Options may be objects, mappings or JSON strings.
    """
    method = _entry(getattr(args, "speculative_config", None), "method")
    connector = _entry(getattr(args, "kv_transfer_config", None), "kv_connector")
    asked = method or getattr(args, "spec_method", None)
    if asked == facts.EXTRACT or connector in facts.CONNECTORS:
        return True
    kv = _plain(getattr(args, "kv_transfer_config", None))
    return isinstance(kv, Mapping) and tap_child(kv) is not None


def _entry(option: Any, name: str) -> Any:
    value = _parsed(option)
    if isinstance(value, Mapping):
        return value.get(name)
    return getattr(value, name, None)


def given_options(args: Any) -> dict[str, Any]:
    """The options of ``args`` that differ from their defaults, by field name.

    Configuration objects become mappings of what differs in them; JSON objects in
    strings are parsed. Private fields are left out.
    """
    return {
        name: value
        for name, value in _differing(args).items()
        if not name.startswith("_")
    }


def with_changes(args: Any, changes: Iterable[Change]) -> Any:
    """A copy of ``args`` with ``changes`` made; ``args`` stays as it is.

    Raises:
        ValueError: a change sets an option that this vLLM does not have.
    """
    fields = {field.name: field for field in dataclasses.fields(args)}
    changed = copy.copy(args)
    for change in changes:
        field = fields.get(change.option)
        if change.value is REMOVE:
            if field is not None:
                setattr(changed, change.option, _default(field))
            continue
        if field is None:
            raise ValueError(
                f"This vLLM has no option {change.option}, which is needed here: "
                f"{change.why}"
            )
        value = change.value
        current = getattr(args, change.option)
        if isinstance(value, Mapping):
            value = copy.deepcopy(dict(value))
            if dataclasses.is_dataclass(current) and not isinstance(current, type):
                value = type(current)(**value)
        setattr(changed, change.option, value)
    return changed


def _differing(instance: Any) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name, None)
        if value != _default(field):
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _differing(value)
    return _parsed(value)


def _parsed(value: Any) -> Any:
    """``value``, or what it holds if it is a string with a JSON object."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value  # vLLM says what is wrong with it, better than we could


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    default: Any = field.default
    if hasattr(default, "get_default"):  # a pydantic FieldInfo
        return default.get_default(call_default_factory=True)
    return None if default is dataclasses.MISSING else default
