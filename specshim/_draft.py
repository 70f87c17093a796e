"""A plan in the making, and what both routes put into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specshim import _vllm_facts as facts
from specshim._backends import BACKEND_KEY, BACKENDS, FILE, HS_BACKENDS, lacking
from specshim._multi import tap_child, with_child
from specshim._plan_types import (
    REMOVE,
    Change,
    Refused,
    Request,
    as_mapping,
    as_size,
    as_true,
)
from specshim.detect import Environment, ModelFacts


@dataclass
class Draft:
    """A plan in the making."""

    environment: Environment
    model: ModelFacts
    request: Request
    foreign: str | None = None  # the user's own connector
    backend: str = FILE
    changes: list[Change] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def options(self) -> Mapping[str, Any]:
        return self.request.options

    def on(self, option: str) -> bool:
        return as_true(self.options.get(option))

    def unset(self, option: str) -> bool:
        return self.options.get(option) is None

    def set(self, option: str, value: Any, why: str) -> None:
        given = self.options.get(option)
        if isinstance(value, dict):
            given = as_mapping(given)
        if given != value:
            self.changes.append(Change(option, value, why))

    def remove(self, option: str, why: str) -> None:
        if self.options.get(option) not in (None, ""):
            self.changes.append(Change(option, REMOVE, why))

    @property
    def stateful(self) -> bool:
        return self.model.hybrid and not facts.STATEFUL_KINDS.isdisjoint(
            self.model.layer_kinds
        )

    def before(self, release: facts.Release) -> bool:
        """Whether this vLLM is older; one without a number counts as the newest."""
        number = facts.release(self.environment.vllm or "")
        return number is not None and number < release


def check_backend(draft: Draft) -> None:
    """Refuse a backend that is unknown or not installed, or that cannot work here."""
    name = draft.backend
    if name not in BACKENDS:
        raise Refused(
            f"The backend {name!r} is unknown; "
            f"--hidden-states-backend takes {', '.join(BACKENDS)}."
        )
    if name not in HS_BACKENDS:
        return
    problem = lacking(name, draft.environment.hs_connectors)
    if problem is not None:
        raise Refused(problem)
    if draft.request.source == "launcher" and draft.request.backend_config is None:
        raise Refused(
            f"The hs_connectors that is installed registers no backend {name}; "
            "install hs_connectors anew."
        )
    if as_size(draft.options.get("pipeline_parallel_size")) > 1:
        raise Refused(
            f"The backend {name} cannot be used with pipeline parallelism, because a "
            "sample of it holds all layers at once and each stage has only its own; "
            "leave out --pipeline-parallel-size or use the backend file."
        )


def kv_transfer(draft: Draft, connector: dict[str, Any]) -> dict[str, Any]:
    """The user's kv_transfer_config with this connector in it.

    In a MultiConnector, that is the one which names the tap connector.
    """
    request = draft.request
    whole = as_mapping(draft.options.get("kv_transfer_config")) or {}
    child = tap_child(whole)
    user = whole if child is None else child
    given = user.get("kv_connector_extra_config")
    extra = as_mapping(given)
    if extra is None and given is not None:
        raise Refused(
            "kv_connector_extra_config in --kv-transfer-config is not a JSON object; "
            "write it as a dict."
        )
    extra = extra or {}
    role = user.get("kv_role") or "kv_producer"
    if role == "kv_consumer":
        raise Refused(
            "kv_role kv_consumer contradicts the extraction, which produces; "
            "leave kv_role out."
        )
    built = as_mapping(request.backend_config) or {}
    theirs = as_mapping(built.get("kv_connector_extra_config")) or {}
    path = extra.get("shared_storage_path")
    if draft.backend == "mooncake":
        path = None
    elif request.storage_path is not None:
        if path is not None and path != request.storage_path:
            raise Refused(
                f"--hidden-states-path says {request.storage_path} and "
                f"shared_storage_path in --kv-transfer-config says {path}; "
                "give the path once."
            )
        path = request.storage_path
    elif path is None:
        launcher = request.source == "launcher"
        path = facts.LAUNCHER_STORAGE if launcher else facts.STOCK_STORAGE
    merged = {
        **connector,
        "kv_role": role,
        "kv_connector_extra_config": {
            **theirs,
            **extra,
            **({} if path is None else {"shared_storage_path": path}),
            **({} if draft.backend == FILE else {BACKEND_KEY: draft.backend}),
        },
    }
    merged.update({key: user[key] for key in user if key not in merged})
    return merged if child is None else with_child(whole, child, merged)
