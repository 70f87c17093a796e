"""``specshim doctor``: what is installed, armed and applied, and what will not work."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specshim import __version__, process_report, status
from specshim import _vllm_facts as facts
from specshim.commands.doctor_report import render
from specshim.detect import Environment, detect_environment
from specshim.detect.plugin import plugin_allowed, plugin_visible
from specshim.patching.gate import NEWEST_KNOWN
from specshim.patching.report import Row, installed_versions, rows

CHECKS = ("tested", "fits")
NVIDIA = Path("/proc/driver/nvidia")
_VARIABLES = ("SPECSHIM", "VLLM_PLUGINS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--build-check",
        choices=CHECKS,
        nargs="?",
        const=CHECKS[0],
        help="end with status 1 where servers of this environment are not covered, for "
        "image builds. tested (default): by a vLLM no newer than the newest that was "
        "read and tested; fits: by any whose code looks as expected",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    report = collect()
    if args.build_check:
        report["build_check"] = args.build_check
        report["uncovered"] = list(uncovered(report, args.build_check))
    print(json.dumps(report, indent=2) if args.json else render(report))
    return 1 if report.get("uncovered") else 0


def uncovered(report: Mapping[str, Any], check: str) -> Iterator[str]:
    """Why servers of this environment are not covered, a sentence each."""
    version, newest = report["packages"]["vllm"], NEWEST_KNOWN["vllm"]
    if version is None:
        yield f"There is no vLLM in this Python ({report['executable']})."
    number = facts.release(version or "")
    if version and number is None:
        yield f"vLLM says no release number ({version})."
    elif check == "tested" and number and number > (facts.release(newest) or number):
        yield (
            f"vLLM {version} is newer than {newest}, the newest release that this "
            "specshim was tested on; install a newer specshim, or accept what "
            "looks as expected with --build-check fits."
        )
    for row in report["patches"]:
        if row["kind"] == "hook" and row["verdict"] in ("OFF", "UNKNOWN"):
            yield f"The hook {row['id']} is not in place: {row['reason']}"
    bearable = other_distribution(report["vllm_distribution"])
    yield from (text for text in report["problems"] if text != bearable)


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
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "platform": here.platform,
        "gpus": list(gpus()),
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


def gpus(driver: Path = NVIDIA) -> Iterator[str]:
    """What NVIDIA's driver says of itself and its GPUs, without importing torch."""
    try:
        head = (driver / "version").read_text().splitlines()[0]
        cards = sorted(driver.glob("gpus/*/information"))
        models = [card.read_text() for card in cards]
    except (OSError, IndexError):
        return
    found = re.search(r"\d+\.\d+[.\d]*", head)
    names = Counter(
        name.strip()
        for text in models
        for key, _, name in (line.partition(":") for line in text.splitlines())
        if key == "Model"
    )
    for name, count in names.items():
        yield f"{count} x {name}, driver {found[0] if found else 'unknown'}"


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
            other_distribution(distribution),
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


def other_distribution(name: str | None) -> str:
    """The problem of a vLLM that is not called so; one that the launcher gets past."""
    return (
        f"vLLM comes from the distribution {name}: its `vllm serve` asks "
        "for one named vllm and stops with PackageNotFoundError. "
        "`python -m specshim.launch_vllm` starts it."
    )


def notes(here: Environment) -> tuple[str, ...]:
    """What is worth knowing and nothing to be mended."""
    if here.vllm is None and here.speculators is not None:
        return (
            "There is no vllm here, so servers cannot be started from this Python; "
            "that is as it should be in the trainer's environment.",
        )
    return ()
