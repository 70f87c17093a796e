"""The command line: finds the subcommand's module and runs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from specshim import __version__
from specshim._guard import guarded
from specshim.commands.help import explain

# name: (module with add_arguments(parser) and run(args) -> exit status, help)
COMMANDS: Mapping[str, tuple[str, str]] = {
    "plan": ("specshim.commands.plan", "what would be done for a model, and why"),
    "doctor": ("specshim.commands.doctor", "what is installed, armed, and missing"),
    "list": ("specshim.commands.listing", "every patch and its verdict here"),
    "explain": ("specshim.commands.explain", "one patch: symptom, cause, fix"),
    "verify": ("specshim.verify", "compare a running server with transformers"),
    "demo": ("specshim.demo", "the main job on a tiny model on this machine"),
}
DESCRIPTION = """\
Correct and fast hidden-state extraction on stock vLLM. A server is started with
`python -m specshim.launch_vllm MODEL`, or rerouted by the plugin."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _run(words))


def _run(words: list[str]) -> int:
    chosen = next((word for word in words if not word.startswith("-")), None)
    args = build_parser(chosen).parse_args(words)
    status: int = import_module(COMMANDS[args.command][0]).run(args)
    return status


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser, with the options of the command ``chosen`` alone."""
    parser = argparse.ArgumentParser(
        prog="specshim",
        description=DESCRIPTION,
        epilog="`specshim COMMAND --help` shows examples and exit statuses.",
    )
    parser.add_argument(
        "--version", action="version", version=f"specshim {__version__}"
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, text) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=text, description=text)
        if name == chosen:
            import_module(module).add_arguments(subparser)
            explain(subparser, name)
    return parser


if __name__ == "__main__":
    sys.exit(main())
