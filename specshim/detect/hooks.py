"""What the tap's connector needs in vLLM's source, and what of it is missing.

The functions that hooks wrap are judged by their own declarations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector"
_CONNECTORS = "distributed/kv_transfer/kv_connector"


@dataclass(frozen=True)
class Hook:
    """A hook point: its dotted name, the file below vllm/, and what must be there.

    ``pattern`` is searched in the body of class ``owner``, or in the whole file
    where ``owner`` is empty.
    """

    name: str
    file: str
    owner: str
    pattern: str


def _method(module: str, file: str, owner: str, method: str) -> Hook:
    name = f"{module}.{owner}.{method}"
    return Hook(name, file, owner, rf"^    (?:async )?def {method}\(")


HOOKS: tuple[Hook, ...] = (
    _method(
        "vllm.v1.worker.gpu_model_runner",
        "v1/worker/gpu_model_runner.py",
        "GPUModelRunner",
        "_dummy_run",
    ),
    *(
        _method(
            f"{_CONNECTOR}.v1.base",
            f"{_CONNECTORS}/v1/base.py",
            "KVConnectorBase_V1",
            method,
        )
        for method in (
            "bind_connector_metadata",
            "wait_for_save",
            "build_connector_meta",
            "request_finished",
        )
    ),
    Hook(
        f"{_CONNECTOR}.factory.kv_connector_module_path",
        f"{_CONNECTORS}/factory.py",
        "",
        r"\bkv_connector_module_path\b",
    ),
)


def missing_hooks(vllm: Path) -> tuple[str, ...]:
    """The dotted names of the hook points that the vLLM in folder ``vllm`` lacks.

    Reads its source text only; a file that is not there lacks its hooks.
    """
    return tuple(hook.name for hook in HOOKS if not _is_there(vllm, hook))


def _is_there(vllm: Path, hook: Hook) -> bool:
    try:
        text = (vllm / hook.file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    bodies = _class_bodies(text, hook.owner) if hook.owner else iter([text])
    return any(re.search(hook.pattern, body, re.MULTILINE) for body in bodies)


def _class_bodies(text: str, owner: str) -> Iterator[str]:
    """The text of each class of that name, up to the next statement at column 0."""
    for head in re.finditer(rf"^class {owner}\b", text, re.MULTILINE):
        end = re.compile(r"^[A-Za-z_@]", re.MULTILINE).search(text, head.end())
        yield text[head.end() : end.start() if end else len(text)]
