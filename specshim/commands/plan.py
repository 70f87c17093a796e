"""``specshim plan``: what would be done for a model, on which vLLM, and why."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from packaging.version import InvalidVersion, Version

from specshim import _vllm_facts as facts
from specshim._launch import Launch, build_launch, describe_change, read_arguments
from specshim.commands.output import refuse
from specshim.detect import (
    Environment,
    ModelFacts,
    ModelNotFound,
    detect_environment,
)
from specshim.detect.hub import model_of_options
from specshim.launch_vllm import add_arguments as add_launch_arguments
from specshim.launch_vllm import backend_config, split_arguments
from specshim.patching.gate import NEWEST_KNOWN
from specshim.planning import REMOVE

VERSIONS = {
    "python": "Python",
    "vllm": "vLLM",
    "vllm_distribution": "vLLM distribution",
    "platform": "Platform",
    "torch": "PyTorch",
    "transformers": "transformers",
    "speculators": "speculators",
    "hs_connectors": "hs_connectors",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``specshim plan``; arguments for vLLM stand behind ``--``."""
    parser.usage = "specshim plan MODEL [options] [-- VLLM_ARGS]"
    add_launch_arguments(parser)
    parser.add_argument(
        "--route",
        dest="specshim_route",
        choices=facts.ROUTES,
        default="auto",
        help="the same as --specshim-route",
    )
    parser.add_argument(
        "--vllm",
        type=release_number,
        metavar="VERSION",
        help="plan for this release of vLLM (default: the installed one)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    _keep_what_follows_double_dash(parser)


def release_number(text: str) -> str:
    """A version as PEP 440 has it: 0.32.0, 0.21.1.dev45+g12ab, 0.24.0+cpu."""
    try:
        Version(text)
    except InvalidVersion:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no version; write one like {NEWEST_KNOWN['vllm']}"
        ) from None
    return text


def release_notes(environment: Environment, *, named: bool) -> Iterator[str]:
    """What is not known about the release that is planned for."""
    version, newest = environment.vllm or "", NEWEST_KNOWN["vllm"]
    if named:
        yield (
            f"vLLM {version} is named, not inspected: its sources may lack what this "
            "plan counts on."
        )
    if (facts.release(version) or (0, 0)) > (facts.release(newest) or (0, 0)):
        yield (
            f"vLLM {version} is newer than {newest}, the newest release that was read "
            "and tested."
        )


def run(args: argparse.Namespace) -> int:
    """Print the plan. Returns 0, or 2 where nothing could be started."""
    environment = detect_environment(vllm=args.vllm)
    reading = read_arguments(environment, getattr(args, "vllm_args", []))
    try:
        model = model_of_options(args.model, reading.options)
    except ModelNotFound as error:
        return refuse("plan", str(error), as_json=args.json)
    args.backend_config = backend_config(args)
    launch = build_launch(environment, model, args, reading)
    notes = (*launch.notes, *release_notes(environment, named=args.vllm is not None))
    refusal = launch.refusal
    if environment.vllm is None and refusal:
        newest = NEWEST_KNOWN["vllm"]
        refusal = f"{refusal[:-1]}, or name a release with --vllm {newest}."
    launch = replace(launch, notes=notes, refusal=refusal)
    report = collect(environment, model, launch)
    if args.json:
        print(json.dumps(report, indent=2, default=str))
    else:
        print("\n".join(f"{key}: {value}" for key, value in text_lines(report)))
    return 2 if launch.refusal else 0


def collect(
    environment: Environment, model: ModelFacts, launch: Launch
) -> dict[str, Any]:
    """The report as data that JSON can hold."""
    decision = launch.plan
    return {
        "versions": {name: getattr(environment, name) for name in VERSIONS},
        "missing_tap_hooks": list(environment.missing_tap_hooks),
        "model": asdict(model),
        "route": decision.route,
        "reason": decision.reason,
        "layer_ids": list(decision.layer_ids),
        "command": list(launch.command),
        "variables": dict(launch.variables),
        "changes": [
            {
                "option": change.option,
                "removed": change.value is REMOVE,
                "value": None if change.value is REMOVE else change.value,
                "arguments": describe_change(change.option, change.value),
                "why": change.why,
            }
            for change in decision.changes
        ],
        "patches": [asdict(found) for found in decision.patches],
        "warnings": list(decision.warnings),
        "notes": list(launch.notes),
        "refusal": launch.refusal,
    }


def text_lines(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The report as keys and values, a line each."""
    model = report["model"]
    yield "Model", model["name"]
    yield "Config", model["config_path"]
    known = "" if model["known"] else " (unknown to specshim: judged by its fields)"
    yield "Model type", model["model_type"] + known
    yield "Kind", model["summary"]
    yield "Layers", str(model["num_hidden_layers"])
    for group in model["groups"]:
        yield "Layer group", f"{group['count']} {group['kind']} ({group['source']})"
    for note in model["notes"]:
        yield "Model note", note
    for name, title in VERSIONS.items():
        yield title, report["versions"][name] or "not found"
    for hook in report["missing_tap_hooks"]:
        yield "Missing hook point", hook
    yield "Route", report["route"]
    if report["reason"]:
        yield "Reason", report["reason"]
    if report["layer_ids"]:
        yield "Layer ids", " ".join(map(str, report["layer_ids"]))
    for change in report["changes"]:
        yield "Change", f"{change['arguments']} ({change['why']})"
    for found in report["patches"]:
        text = f"{found['id']}: {found['verdict']}. {found['reason']}"
        yield found["kind"].capitalize(), text
    if not report["patches"]:
        yield "Patches", "none"
    for warning in report["warnings"]:
        yield "Warning", warning
    for note in report["notes"]:
        yield "Note", note
    if report["refusal"]:
        yield "Refused", report["refusal"]
        return
    for name, value in report["variables"].items():
        yield "Variable", f"{name}={value}"
    yield "Command", shlex.join(report["command"])


def _keep_what_follows_double_dash(parser: argparse.ArgumentParser) -> None:
    """Let the parser keep what stands behind ``--`` as ``vllm_args``, unparsed.

    argparse would hand it to the next positional argument, or report it as unknown.
    """
    parse_own = parser.parse_known_args

    def parse_known_args(
        args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        own, vllm_args = split_arguments(sys.argv[1:] if args is None else args)
        parsed, unknown = parse_own(own, namespace)
        parsed.vllm_args = vllm_args
        return parsed, unknown

    setattr(parser, "parse_known_args", parse_known_args)  # noqa: B010
