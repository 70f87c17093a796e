"""The report of ``specshim doctor`` as text: short enough to paste, problems first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

ENDED_SHOWN = 2
"""Servers that have ended, of which the newest are shown."""

NOTHING_APPLIED = "nothing; what servers have applied stands below"
NO_SERVER = (
    "none; no server that extracts has reported from this machine and user, in the "
    "last week"
)
_TOLD = ("REFUSED", "OFF", "UNKNOWN")  # with their reason; the others in one line


def render(report: Mapping[str, Any]) -> str:
    """The report as ``Key: value`` lines that paste into a bug report."""
    here = report["this_process"]
    lines = [("problem", text) for text in report["problems"]] or [
        ("problems", "none found")
    ]
    lines += [("not covered", text) for text in report.get("uncovered", ())]
    if "build_check" in report and not report["uncovered"]:
        lines.append(("build check", f"covered ({report['build_check']})"))
    lines += [("note", text) for text in report["notes"]]
    lines += [
        ("specshim", report["specshim"]),
        ("python", f"{report['python']} ({report['executable']})"),
        ("system", report["system"]),
        ("platform of vLLM", report["platform"]),
    ]
    lines += [("GPU", text) for text in report["gpus"]]
    lines += [(name, value or "absent") for name, value in report["packages"].items()]
    if report["vllm_distribution"] not in (None, "vllm"):
        lines.append(("vllm distribution", report["vllm_distribution"]))
    lines.append(("vLLM plugin", _plugin_text(report["plugin"])))
    lines += [(f"${name}", value) for name, value in report["variables"].items()]
    lines += list(_patch_lines(report["patches"]))
    lines.append(("watched in this process", ", ".join(here["watched"]) or "nothing"))
    lines.append(
        ("applied in this process", ", ".join(here["installed"]) or NOTHING_APPLIED)
    )
    lines += [(f"failed: {name}", why) for name, why in here["failures"].items()]
    lines += list(_server_lines(report["servers"])) or [("servers", NO_SERVER)]
    return "\n".join(f"{key}: {value}" for key, value in lines)


def _patch_lines(patches: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """What is out of order with its reason; of the rest, the ids by package."""
    for row in patches:
        if row["verdict"] in _TOLD:
            yield f"{row['kind']} {row['id']}", f"{row['verdict']}. {row['reason']}"
    packages = dict.fromkeys(row["package"] for row in patches)
    for package in packages:
        own = [row for row in patches if row["package"] == package]
        for verdict, said in (("APPLY", "fit here"), ("NOT_NEEDED", "not needed here")):
            ids = [row["id"] for row in own if row["verdict"] == verdict]
            if ids:
                yield f"{package}, {said} ({len(ids)})", ", ".join(ids)


def _server_lines(
    processes: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, str]]:
    """A line per process of all servers that run, and of the last that ended."""
    servers = [
        list(found) for _, found in groupby(processes, key=lambda p: p["server"])
    ]
    ended = [
        server
        for server in servers
        if all(process["running"] is False for process in server)
    ]
    left_out = ended[:-ENDED_SHOWN]
    if left_out:
        text = f"{len(left_out)} that have ended; specshim doctor --json shows them"
        yield "earlier servers", text
    for server in servers:
        if server not in left_out:
            for process in server:
                yield from _process_lines(process)


def _process_lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    running = {True: "running", False: "ended", None: f"on {found['host']}"}
    where = f"server {found['server']}, process {found['pid']} {found['process']}"
    by_state: dict[str, list[str]] = {}
    for patch_id, entry in found["patches"].items():
        by_state.setdefault(entry["state"], []).append(patch_id)
    states = "; ".join(
        f"{state} {', '.join(ids)}"
        for state, ids in by_state.items()
        if state != "not needed"
    )
    about = f"{running[found['running']]}, route {found['route']}"
    yield where, f"{about}, vllm {found['vllm']}; {states or 'nothing armed'}"
    for patch_id, entry in found["patches"].items():
        if entry["state"] in ("refused", "failed"):
            yield f"{where}, {patch_id}", f"{entry['state']}. {entry['reason']}"


def _plugin_text(plugin: Mapping[str, bool]) -> str:
    if not plugin["visible"]:
        return "not visible to vLLM"
    return "visible" if plugin["allowed"] else "visible, left out by VLLM_PLUGINS"
