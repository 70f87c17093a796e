"""The tap connector as one of several, in vLLM's MultiConnector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specshim import _vllm_facts as facts
from specshim._plan_types import Refused, as_mapping

MULTI: Final = "MultiConnector"


def children(kv: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The configs of the connectors in a MultiConnector's ``kv_transfer_config``."""
    if kv.get("kv_connector") != MULTI or kv.get("kv_connector_module_path"):
        return []
    extra = as_mapping(kv.get("kv_connector_extra_config")) or {}
    listed = extra.get("connectors")
    if not isinstance(listed, (list, tuple)):
        return []
    return [child for child in listed if isinstance(child, Mapping)]


def is_tap(kv: Mapping[str, Any]) -> bool:
    """Whether this config names the tap connector, with its module or without."""
    module = kv.get("kv_connector_module_path")
    return kv.get("kv_connector") == facts.TAP_CONNECTOR and module in (
        None,
        facts.TAP_MODULE,
    )


def tap_child(kv: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The config of the tap connector in a MultiConnector; None if there is none."""
    return next((child for child in children(kv) if is_tap(child)), None)


def check_children(kv: Mapping[str, Any]) -> None:
    """Refuse a MultiConnector in which something cannot stand beside the tap."""
    listed = children(kv)
    if sum(map(is_tap, listed)) > 1:
        raise Refused(
            f"The {MULTI} in --kv-transfer-config names {facts.TAP_CONNECTOR} more "
            "than once; name it once, with all the layers that you need."
        )
    if any(child.get("kv_connector") == facts.STOCK_CONNECTOR for child in listed):
        raise Refused(
            f"The {MULTI} in --kv-transfer-config names both {facts.TAP_CONNECTOR} and "
            f"{facts.STOCK_CONNECTOR}, which write the same states; leave the second "
            "out."
        )


def with_child(
    kv: Mapping[str, Any], child: Mapping[str, Any], changed: Mapping[str, Any]
) -> dict[str, Any]:
    """``kv`` with its connector ``child`` replaced by ``changed``."""
    extra = as_mapping(kv.get("kv_connector_extra_config")) or {}
    listed = [dict(changed) if one is child else one for one in extra["connectors"]]
    return {**kv, "kv_connector_extra_config": {**extra, "connectors": listed}}


def loading(kv: Mapping[str, Any]) -> list[str]:
    """Names of the connectors beside the tap that may load what others computed."""
    return [
        str(child.get("kv_connector"))
        for child in children(kv)
        if not is_tap(child) and child.get("kv_role") != "kv_producer"
    ]
