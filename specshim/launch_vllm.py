"""Start ``vllm serve`` with hidden-state extraction: a drop-in for the launcher
script of speculators, same flags, on the route that works for the model."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from specshim import _vllm_facts as facts
from specshim._backends import BACKENDS, HS_BACKENDS
from specshim._guard import guarded
from specshim._launch import (
    Launch,
    build_launch,
    connector_settings,
    describe,
    read_arguments,
    storage_option,
    storage_path,
)
from specshim._sentences import one_line
from specshim._storage import storage_problem
from specshim._transport import backend_problem
from specshim.commands.help import explain
from specshim.detect import ModelNotFound, detect_environment
from specshim.detect.hub import model_of_options
from specshim.detect.plugin import plugin_visible

DESCRIPTION = """\
Launch vLLM for the extraction of hidden states. Flags that are not listed here,
before or after --, go to vLLM."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The launcher's own flags, shared with ``specshim plan``."""
    parser.add_argument("model", help="name or path of the model")
    parser.add_argument(
        "--hidden-states-path",
        help="folder that the hidden states are saved to (default: /tmp/hidden_states)",
    )
    parser.add_argument(
        "--hidden-states-backend",
        default="file",
        metavar="BACKEND",
        help=f"how they travel: {', '.join(BACKENDS)} (default: file)",
    )
    parser.add_argument(
        "--target-layer-ids",
        type=int,
        nargs="*",
        metavar="ID",
        help="layers to extract; 0 is the embeddings, N the last layer of N (default: "
        "2, N//2, N-3, N). Pass the same ids to training.",
    )
    parser.add_argument(
        "--include-last-layer",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="append the last layer to --target-layer-ids (default: yes)",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="passed on to vLLM; the launcher itself runs no code of the model",
    )
    parser.add_argument(
        "--specshim-route",
        choices=facts.ROUTES,
        default="auto",
        help="tap: record layer outputs; cache: vLLM's stock extraction; auto "
        "(default): SPECSHIM_ROUTE, or tap wherever it can work",
    )


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before the first ``--`` and what stands behind it."""
    if "--" not in argv:
        return list(argv), []
    place = list(argv).index("--")
    return list(argv[:place]), list(argv[place + 1 :])


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The launcher's flags and vLLM's arguments; exits with 2 on a usage error."""
    parser = argparse.ArgumentParser(
        prog="python -m specshim.launch_vllm",
        description=DESCRIPTION,
        usage="%(prog)s MODEL [options] [-- VLLM_ARGS]",
        allow_abbrev=False,
    )
    explain(parser, "launch_vllm")
    add_arguments(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the command without running it"
    )
    before, after = split_arguments(argv)
    args, unknown = parser.parse_known_args(before)
    backend = _registered_backend(args.hidden_states_backend)
    if backend is not None:
        backend.add_launch_args(parser)
        args, unknown = parser.parse_known_args(before)
        try:
            args.backend_config = _built_config(backend, args)
        except OSError as error:
            parser.error(
                f"the backend {args.hidden_states_backend} cannot find this host's "
                f"address ({error}); set MOONCAKE_LOCAL_HOSTNAME"
            )
    for flag in unknown:
        if flag.startswith("--specshim"):
            parser.error(f"unrecognized argument: {flag}")
    return args, unknown + after


def backend_config(args: argparse.Namespace) -> dict[str, Any] | None:
    """The kv_transfer_config of ``args``' backend, its own flags left at defaults.

    None for the backend file, and where hs_connectors has no such backend.
    """
    backend = _registered_backend(args.hidden_states_backend)
    if backend is None:
        return None
    parser = argparse.ArgumentParser(add_help=False)
    backend.add_launch_args(parser)
    defaults = parser.parse_args([])
    return _built_config(
        backend, argparse.Namespace(**{**vars(defaults), **vars(args)})
    )


def _registered_backend(name: str) -> Any:
    """The backend as hs_connectors registers it; None where it does not."""
    if name not in HS_BACKENDS:
        return None
    try:
        from hs_connectors import HiddenStatesBackend
    except ImportError:
        return None
    return dict(HiddenStatesBackend.registry).get(name)


def _built_config(backend: Any, args: argparse.Namespace) -> dict[str, Any]:
    path = args.hidden_states_path or facts.LAUNCHER_STORAGE
    known = argparse.Namespace(**{**vars(args), "hidden_states_path": path})
    built: dict[str, Any] = backend.build_kv_transfer_config(known)
    return built


def main(argv: Sequence[str] | None = None) -> int:
    """Run the launcher; returns only where vLLM is not started."""
    return guarded(lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(argv: Sequence[str]) -> int:
    args, vllm_args = parse(argv)
    environment = detect_environment()
    reading = read_arguments(environment, vllm_args)
    try:
        model = model_of_options(args.model, reading.options, download=True)
    except ModelNotFound as error:
        hint = (
            " The model comes first, then the flags." if argv[0] != args.model else ""
        )
        return _fail(f"{error}{hint}")
    launch = build_launch(environment, model, args, reading)
    for line in describe(launch):
        print(f"specshim: {line}", file=sys.stderr)
    if launch.refusal:
        return 2
    path = storage_path(launch)
    problem = _plugin_problem(launch)
    if path and problem is None:
        option = storage_option(reading)
        problem = storage_problem(path, create=not args.dry_run, option=option)
    settings = connector_settings(launch)
    problem = problem or backend_problem(args.hidden_states_backend, settings)
    if problem and not args.dry_run:
        return _fail(problem)
    if problem:
        print(f"specshim: warning: {one_line(problem)}", file=sys.stderr)
    print("Running command:")
    print(shlex.join(launch.command), flush=True)
    if args.dry_run:
        return 0
    sys.stderr.flush()
    os.environ.update(launch.variables)
    _execute(launch.command)


def _plugin_problem(launch: Launch) -> str | None:
    """A sentence where vLLM's processes would not find specshim's plugin."""
    if launch.plan.route != "tap" or plugin_visible():
        return None
    return (
        "specshim can be imported here but is not installed, so vLLM's processes would "
        "not load its plugin; install it with `pip install specshim`."
    )


def _execute(command: tuple[str, ...]) -> NoReturn:
    os.execvp(command[0], command)


def _fail(sentence: str) -> int:
    print(f"specshim: error: {one_line(sentence)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
