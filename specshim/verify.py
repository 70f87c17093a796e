"""specshim verify: are the hidden states of a running server right?

The same weights run in transformers are the reference; the tolerance is fixed
for float32 and measured for half precision.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specshim._numbers import positive_float, positive_int
from specshim._sentences import one_line
from specshim.commands.output import refuse
from specshim.progress import Progress, progress_to
from specshim.reference import (
    PromptStates,
    ReferenceFailed,
    compute_reference,
    read_config,
)
from specshim.verification.collect import (
    CouldNotTell,
    Missing,
    Sample,
    collect,
    find_server,
    random_prompts,
)
from specshim.verification.compare import UNCLEAR, WRONG, compare
from specshim.verification.report import (
    VerifyReport,
    diagnosis,
    render_text,
    to_json,
)
from specshim.verification.vocabulary import plain_token_ids

__all__ = ["VerifyOptions", "add_arguments", "run", "verify"]


@dataclass(frozen=True)
class VerifyOptions:
    """What to verify, and how much of it."""

    url: str
    model: str
    prompts: int = 12
    seed: int = 0
    max_length: int = 180
    layer_ids: tuple[int, ...] | None = None
    concurrency: int = 8
    timeout: float = 120.0
    file_timeout: float = 30.0
    keep: bool = False
    device: str = "cpu"
    trust_remote_code: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``specshim verify``."""
    parser.add_argument("--url", required=True, help="the server, http://host:port")
    parser.add_argument(
        "--model", required=True, help="folder or hub id of the weights it serves"
    )
    parser.add_argument(
        "--prompts",
        type=positive_int,
        default=12,
        help="how many to send (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the random prompts (default: %(default)s)",
    )
    parser.add_argument(
        "--max-length",
        type=positive_int,
        default=180,
        help="tokens of the longest prompt (default: %(default)s)",
    )
    parser.add_argument(
        "--layer-ids",
        type=int,
        nargs="+",
        metavar="ID",
        help="the layers in the files (default: what the files say)",
    )
    parser.add_argument(
        "--concurrency",
        type=positive_int,
        default=8,
        help="requests at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=positive_float,
        default=120.0,
        metavar="SECONDS",
        help="for one request (default: %(default)g)",
    )
    parser.add_argument(
        "--file-timeout",
        type=positive_float,
        default=30.0,
        metavar="SECONDS",
        help="for a file after its request was answered (default: %(default)g)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the files")
    parser.add_argument(
        "--device",
        default="cpu",
        help="where the reference runs: cpu, cuda, ... (default: %(default)s)",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="let the reference run the model's own code",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE.html",
        help="write a page: errors of every layer, a map of the worst sample",
    )
    parser.add_argument("--json", action="store_true", help="all numbers as JSON")


def run(args: argparse.Namespace) -> int:
    """Verify and print. 0 right, 1 wrong, 2 could not tell."""
    options = VerifyOptions(
        url=args.url,
        model=args.model,
        prompts=args.prompts,
        seed=args.seed,
        max_length=args.max_length,
        layer_ids=tuple(args.layer_ids) if args.layer_ids else None,
        concurrency=args.concurrency,
        timeout=args.timeout,
        file_timeout=args.file_timeout,
        keep=args.keep,
        device=args.device,
        trust_remote_code=args.trust_remote_code,
    )
    problem = page_problem(args.report)
    if problem:
        return refuse("verify", problem, as_json=args.json)
    report = verify(options, progress_to(sys.stderr))
    print(json.dumps(to_json(report), indent=2) if args.json else render_text(report))
    return write_report(args.report, [report], report.exit_code)


def page_problem(path: Path | None) -> str | None:
    """A sentence where no page can be written there; asked before the work is done."""
    if path is None or path.resolve().parent.is_dir():
        return None
    return f"There is no folder {path.resolve().parent} for the report; make it first."


def write_report(
    path: Path | None, reports: Sequence[VerifyReport], status: int
) -> int:
    """Write the page, if one is asked for. Returns ``status``, 2 where it failed."""
    if path is None:
        return status
    from specshim.verification.about import write_page

    if not reports:
        print(f"specshim: there is nothing to report, so no {path}", file=sys.stderr)
        return status
    problem = write_page(path, reports)
    said = problem or f"The report is {path}."
    print(f"specshim: {one_line(said)}", file=sys.stderr)
    return max(status, 2) if problem and status == 0 else status


def verify(options: VerifyOptions, progress: Progress | None = None) -> VerifyReport:
    """Send prompts, load the states, compare. Never raises for what a server does."""
    report = VerifyReport(
        status=UNCLEAR,
        url=options.url,
        model=options.model,
        prompts=options.prompts,
        seed=options.seed,
    )
    try:
        return _verify(options, report, progress or (lambda stage, done, total: None))
    except (CouldNotTell, ReferenceFailed) as error:
        return replace(report, reason=str(error))


def _verify(
    options: VerifyOptions, report: VerifyReport, progress: Progress
) -> VerifyReport:
    config = read_config(options.model, trust_remote_code=options.trust_remote_code)
    vocabulary = plain_token_ids(config, options.model)
    server = find_server(options.url)
    report = replace(report, url=server.url, served_model=server.model)
    longest = options.max_length
    if server.max_model_len is not None:
        longest = max(1, min(longest, server.max_model_len - 1))
    prompts = random_prompts(vocabulary, options.prompts, longest, options.seed)
    results = collect(
        server,
        prompts,
        concurrency=options.concurrency,
        timeout=options.timeout,
        file_timeout=options.file_timeout,
        keep=options.keep,
        progress=lambda done: progress("requests", done, len(prompts)),
    )
    samples = [result for result in results if isinstance(result, Sample)]
    missing = [result for result in results if isinstance(result, Missing)]
    report = replace(
        report,
        answered=len(samples),
        missing=tuple(f"prompt {m.index}: {m.reason}" for m in missing),
    )
    if not samples:
        reason = f"No prompt gave hidden states. {missing[0].reason}"
        return replace(report, missing=report.missing[1:], reason=reason)
    metadata = samples[0].metadata
    layer_ids, source = _layer_ids(options.layer_ids, metadata.get("layer_ids"))
    report = replace(
        report, layer_ids=layer_ids, layer_ids_from=source, metadata=metadata
    )
    exact, rounded = _references(options, prompts, samples, progress)
    try:
        comparison = compare(samples, layer_ids, exact, rounded)
    except ValueError as error:
        return replace(report, reason=str(error))
    status = comparison.status
    why: str | None = None
    if missing and status != WRONG:
        status = UNCLEAR
        why = f"{len(missing)} of {len(prompts)} prompts gave no hidden states."
    elif status == UNCLEAR:
        why = (
            f"{comparison.dtype} alone moves some layers of this model so far that no "
            "limit proves anything; serve it in float32 to verify it."
        )
    return replace(
        report,
        status=status,
        reason=why,
        comparison=comparison,
        diagnosis=diagnosis(comparison.findings),
    )


def _layer_ids(
    given: tuple[int, ...] | None, written: str | None
) -> tuple[tuple[int, ...], str]:
    """The ids and where they are from; the user's own win."""
    if given is not None:
        return given, "--layer-ids"
    if written is None:
        raise CouldNotTell(
            "The files do not say which layers they hold; name them with --layer-ids."
        )
    try:
        ids = json.loads(written)
        return tuple(int(layer_id) for layer_id in ids), "the files"
    except (TypeError, ValueError, RecursionError) as error:
        raise CouldNotTell(
            f"The files' layer_ids {written!r} is no JSON list of numbers; name the "
            "layers with --layer-ids."
        ) from error


def _references(
    options: VerifyOptions,
    prompts: Sequence[Sequence[int]],
    samples: Sequence[Sample],
    progress: Progress,
) -> tuple[list[PromptStates], list[PromptStates] | None]:
    """The float32 reference, and one in the server's dtype where that is another.

    A file may go on after its prompt with output tokens; then so does its reference.
    """
    sequences = [list(prompt) for prompt in prompts]
    for sample in samples:
        if sample.token_ids[: len(sample.prompt)] == sample.prompt:
            sequences[sample.index] = list(sample.token_ids)

    def reference(dtype: str) -> list[PromptStates]:
        return compute_reference(
            options.model,
            sequences,
            dtype,
            device=options.device,
            trust_remote_code=options.trust_remote_code,
            progress=lambda done: progress(f"{dtype} reference", done, len(sequences)),
        )

    dtype = samples[0].dtype
    return reference("float32"), None if dtype == "float32" else reference(dtype)
