"""``specshim doctor``: what is installed, armed and applied, and what will not work."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specshim import __version__, process_report, status
from specshim import _vllm_facts as facts
from specshim.detect import Environment, detect_environment
from specshim.detect.plugin import plugin_allowed, plugin_visible
from specshim.patching.report import Row, installed_versions, rows

NOTHING_APPLIED = "nothing; what servers have applied stands below"
NO_SERVER = (
    "none; no server that extracts has reported from this machine and user, in the "
    "last week"
)
_VARIABLES = ("SPECSHIM", "VLLM_PLUGINS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    report = collect()
    print(json.dumps(report, indent=2) if args.json else render(report))
    return 0


def collect() -> dict[str, Any]:
    """All findings as plain data: versions, plugin, patches, status, problems."""
    here = detect_environment()
    found = rows(installed_versions())
    plugin = {"visible": plugin_visible(), "allowed": plugin_allowed(os.environ)}
    variables = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("SPECSHIM") or name in _VARIABLES
    }
    return {
        "specshim": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": here.platform,
        "packages": {
            "vllm": here.vllm,
            "torch": here.torch,
            "transformers": here.transformers,
            "safetensors": here.safetensors,
            "speculators": here.speculators,
            "hs_connectors": here.hs_connectors,
        },
        "vllm_distribution": here.vllm_distribution,
        "plugin": plugin,
        "variables": variables,
        "patches": [row.as_data() for row in found],
        "this_process": status(),
        "servers": [
            {**dataclasses.asdict(report), "running": report.is_running}
            for report in process_report.read_reports()
        ],
        "notes": list(notes(here)),
        "problems": list(problems(here, plugin, os.environ, found)),
    }


def problems(
    here: Environment,
    plugin: Mapping[str, bool],
    variables: Mapping[str, str],
    found: Sequence[Row],
) -> tuple[str, ...]:
    """What will not work here, one sentence each with what to do about it."""
    has_vllm = here.vllm is not None
    distribution = here.vllm_distribution
    checks = (
        (
            variables.get("SPECSHIM") == "0",
            "SPECSHIM=0 is set, so specshim does nothing; unset it.",
        ),
        (
            not has_vllm and here.speculators is None,
            "Neither vllm nor speculators is installed in this Python "
            f"({sys.executable}); install specshim where one of them is.",
        ),
        (
            (facts.release(here.vllm or "") or facts.OLDEST) < facts.OLDEST,
            f"vLLM {here.vllm} is older than {facts.OLDEST_NAME}, the first release "
            "that extracts hidden states; upgrade vLLM.",
        ),
        (
            has_vllm and not plugin["visible"],
            "The plugin is not visible: specshim was put on the path without being "
            "installed, so a plain `vllm serve` is not rerouted; install it with "
            "pip or uv into this environment.",
        ),
        (
            has_vllm and not plugin["allowed"],
            f"VLLM_PLUGINS={variables.get('VLLM_PLUGINS')} leaves specshim out, so "
            "vLLM will not load it; add specshim to the list or unset it.",
        ),
        (
            has_vllm and distribution not in ("vllm", None),
            f"vLLM comes from the distribution {distribution}: its `vllm serve` asks "
            "for one named vllm and stops with PackageNotFoundError. "
            "`python -m specshim.launch_vllm` starts it.",
        ),
        (
            has_vllm and bool(here.missing_tap_hooks),
            "The tap route does not work with this vLLM, which lacks "
            f"{', '.join(here.missing_tap_hooks)}; use the cache route.",
        ),
        (
            has_vllm and here.torch is None,
            "vLLM is installed and torch is not, so no server can start; "
            "install the torch that this vLLM was built for.",
        ),
    )
    refused = tuple(
        f"{row.patch.kind.capitalize()} {row.patch.id} is refused: {row.reason}"
        for row in found
        if row.verdict == "REFUSED"
    )
    return tuple(text for wrong, text in checks if wrong) + refused


def notes(here: Environment) -> tuple[str, ...]:
    """What is worth knowing and nothing to be mended."""
    if here.vllm is None and here.speculators is not None:
        return (
            "There is no vllm here, so servers cannot be started from this Python; "
            "that is as it should be in the trainer's environment.",
        )
    return ()


def render(report: Mapping[str, Any]) -> str:
    """The report as ``Key: value`` lines that paste into a bug report."""
    here = report["this_process"]
    lines = [
        ("specshim", report["specshim"]),
        ("python", f"{report['python']} ({report['executable']})"),
        ("platform", report["platform"]),
    ]
    lines += [(name, value or "absent") for name, value in report["packages"].items()]
    if report["vllm_distribution"] not in (None, "vllm"):
        lines.append(("vllm distribution", report["vllm_distribution"]))
    plugin = report["plugin"]
    lines.append(("vLLM plugin", _plugin_text(plugin)))
    lines += [(f"${name}", value) for name, value in report["variables"].items()]
    lines += [
        (f"{row['kind']} {row['id']}", f"{row['verdict']}. {row['reason']}")
        for row in report["patches"]
    ]
    lines.append(("watched in this process", ", ".join(here["watched"]) or "nothing"))
    lines.append(
        ("applied in this process", ", ".join(here["installed"]) or NOTHING_APPLIED)
    )
    lines += [(f"failed: {name}", why) for name, why in here["failures"].items()]
    lines += list(_server_lines(report["servers"])) or [("servers", NO_SERVER)]
    lines += [("note", text) for text in report["notes"]]
    lines += [("problem", text) for text in report["problems"]] or [
        ("problems", "none found")
    ]
    return "\n".join(f"{key}: {value}" for key, value in lines)


def _server_lines(
    processes: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, str]]:
    """A line per process, those of one server together."""
    for found in processes:
        running = {True: "running", False: "ended", None: f"on {found['host']}"}
        where = f"server {found['server']}, process {found['pid']} {found['process']}"
        by_state: dict[str, list[str]] = {}
        for patch_id, entry in found["patches"].items():
            by_state.setdefault(entry["state"], []).append(patch_id)
        states = "; ".join(f"{s} {', '.join(ids)}" for s, ids in by_state.items())
        about = f"{running[found['running']]}, route {found['route']}"
        yield where, f"{about}, vllm {found['vllm']}; {states or 'nothing armed'}"
        for patch_id, entry in found["patches"].items():
            if entry["state"] in ("refused", "failed"):
                yield f"{where}, {patch_id}", f"{entry['state']}. {entry['reason']}"


def _plugin_text(plugin: Mapping[str, bool]) -> str:
    if not plugin["visible"]:
        return "not visible to vLLM"
    return "visible" if plugin["allowed"] else "visible, left out by VLLM_PLUGINS"
