"""Examples and exit statuses of every command, as ``--help`` and the docs show them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Help:
    """What stands below the options: examples with what they are for, and statuses."""

    examples: Sequence[tuple[str, str]]
    statuses: Mapping[int, str]


COULD_NOT = "it cannot be said or done; a sentence on stderr says why"
HELP: Mapping[str, Help] = {
    "plan": Help(
        (
            ("specshim plan Qwen/Qwen3.5-9B", "what would be started here, and why"),
            (
                "specshim plan ./model --vllm 0.24.0 --route cache",
                "on another release, without having it",
            ),
            (
                "specshim plan ./model --json -- --tensor-parallel-size 2",
                "with vLLM's own options, for a script",
            ),
        ),
        {0: "a server could be started", 2: "it could not; a sentence says why"},
    ),
    "doctor": Help(
        (
            ("specshim doctor", "paste this into a bug report"),
            ("specshim doctor --build-check", "as a line of a Dockerfile"),
            ("specshim doctor --json", "for a script"),
        ),
        {
            0: "the report was printed",
            1: "with --build-check: servers of this environment are not covered",
        },
    ),
    "list": Help(
        (
            ("specshim list", "what applies to what is installed here"),
            ("specshim list --json", "with symptom, targets and processes"),
        ),
        {0: "the list was printed"},
    ),
    "explain": Help(
        (
            ("specshim explain hybrid-zero-states", "symptom, cause, fix"),
            ("specshim explain hybrid-zero-states --json", "for a script"),
        ),
        {0: "it was printed", 2: "there is no such patch"},
    ),
    "verify": Help(
        (
            (
                "specshim verify --url http://localhost:8000 --model Qwen/Qwen3.5-9B",
                "is this server right?",
            ),
            (
                "specshim verify --url http://localhost:8000 --model ./model "
                "--device cuda --report verify.html",
                "the reference on a GPU, and a page to send to somebody",
            ),
            (
                "specshim verify --url http://localhost:8000 --model ./model "
                "--prompts 64 --max-length 2000 --json",
                "more and longer prompts, all numbers",
            ),
        ),
        {0: "right", 1: "wrong", 2: "could not tell; a sentence says why"},
    ),
    "demo": Help(
        (
            ("specshim demo", "a sliding-window and a GDN hybrid, served and verified"),
            ("specshim demo --model granite4 --prompts 30", "another family"),
            ("specshim demo --report demo.html --json", "a page and all numbers"),
        ),
        {0: "right", 1: "wrong", 2: "could not tell; a sentence says why"},
    ),
    "launch_vllm": Help(
        (
            (
                "python -m specshim.launch_vllm Qwen/Qwen3.5-9B "
                "--hidden-states-path /dev/shm/hidden_states -- --port 8000",
                "serve",
            ),
            (
                "python -m specshim.launch_vllm ./model --target-layer-ids 2 16 29 "
                "--dry-run",
                "show the command, start nothing",
            ),
        ),
        {
            0: "with --dry-run: the command was printed",
            2: "nothing was started; a sentence on stderr says why",
        },
    ),
}
ALWAYS: Mapping[int, str] = {
    2: "wrong options",
    70: "something unexpected, a fault of specshim's own: please report it",
    130: "Ctrl-C",
}


def epilog(command: str) -> str:
    """What stands below the options of ``command``."""
    known = HELP[command]
    lines = ["examples:"]
    for example, purpose in known.examples:
        lines += [f"  {example}", f"      {purpose}"]
    lines += ["", "exit status:"]
    statuses = {**ALWAYS, **known.statuses}
    if 2 in known.statuses:
        statuses[2] = f"{known.statuses[2]}; or {ALWAYS[2]}"
    lines += [f"  {status:<4}{statuses[status]}" for status in sorted(statuses)]
    return "\n".join(lines)


def explain(parser: argparse.ArgumentParser, command: str) -> None:
    """Put the examples of ``command`` into its ``--help``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = epilog(command)
