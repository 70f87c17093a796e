"""A real server under load for minutes: nothing lost, nothing wrong, nothing grows.

    python tests/load/soak.py --minutes 30                          # a tiny model, CPU
    python tests/load/soak.py --minutes 5 --model /models/llama-8b \
        --dtype bfloat16 --device cuda --port 8000 --clients 4 --concurrency 256 \
        --prompts 16 --longest 1024 --storage /dev/shm/soak --json soak.json \
        -- --max-model-len 2048

Runs in vLLM's environment with specshim installed, and needs no network. Exits with 0
if all held, 1 if not, and prints a table either way.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import soak_meter
import soak_reference
from soak_client import (
    ANSWER_SECONDS,
    Client,
    Job,
    Outcome,
    remove_abandoned,
    run_job,
)

from specshim.server_process import (
    ServerFailed,
    free_port,
    last_lines,
    running,
    wait_until_healthy,
)

SETTLE_SECONDS = 20.0  # for what is under way when the clients have gone
WARM_SECONDS = 5.0
SPARE_DESCRIPTORS = 4  # connections and logs of vLLM itself


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        usage="%(prog)s [options] [-- VLLM_ARGS]",
    )
    add = parser.add_argument
    add("--minutes", type=float, default=30.0)
    add("--model", help="folder with config, weights and tokenizer (default: tiny)")
    add("--tiny", default="llama", help="name of a tiny model (default: llama)")
    add("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    add("--device", default="cpu", help="of the reference: cpu or cuda")
    add("--port", type=int, help="default: a free one")
    add("--concurrency", type=int, default=64)
    add("--clients", type=int, default=1, help="client processes")
    add("--prompts", type=int, default=64, help="prompts with a reference")
    add("--longest", type=int, default=400, help="tokens of the longest prompt")
    add("--aborts", type=float, default=0.1, help="share of requests that go away")
    add("--verify-every", type=int, default=50)
    add("--storage", help="hidden-states path (default: a temporary folder)")
    add("--folder", help="where models, log and references go (default: temporary)")
    add("--json", help="file for the report")
    add("--start-seconds", type=float, default=600.0)
    own, theirs = argv, []
    if "--" in argv:
        own, theirs = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    return parser.parse_args(own), theirs


def main(argv: list[str] | None = None) -> int:
    args, vllm_args = parse(sys.argv[1:] if argv is None else argv)
    if not vllm_args and args.device == "cpu":
        vllm_args = ["--max-model-len", "512", "--enforce-eager"]
    folder = Path(args.folder or tempfile.mkdtemp(prefix="specshim-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    storage = Path(args.storage or folder / "hs")
    shutil.rmtree(storage, ignore_errors=True)
    try:
        report = soak(args, vllm_args, folder, storage)
    except ServerFailed as error:
        print(f"{error}\n" + "\n".join(last_lines(folder / "server.log", 40)))
        return 1
    finally:
        if not args.folder:
            shutil.rmtree(folder, ignore_errors=True)
    print(render(report))
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["held"] else 1


def soak(
    args: argparse.Namespace, vllm_args: list[str], folder: Path, storage: Path
) -> dict[str, Any]:
    """Make the references, serve, load, settle; see :func:`judge` for the report."""
    from specshim.tiny import ensure_tiny_model

    model = args.model or str(ensure_tiny_model(args.tiny, folder / "models"))
    references = str(folder / "references.pt")
    aside = multiprocessing.get_context("spawn")
    making = aside.Process(
        target=soak_reference.make,
        args=(model, references, args.dtype, args.device, args.prompts, args.longest),
    )
    making.start()
    making.join()
    if making.exitcode:
        raise ServerFailed("transformers made no reference.")
    port = args.port or free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "specshim.launch_vllm", model),
        *("--hidden-states-path", str(storage), "--"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", args.dtype),
        *vllm_args,
    ]
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **os.environ,
    }
    log = folder / "server.log"
    with running(command, log, variables, grace=60.0) as server:
        wait_until_healthy(server, url, args.start_seconds)
        job = Job(
            url=url,
            model=model,
            storage=str(storage),
            references=references,
            seconds=WARM_SECONDS,
            concurrency=args.concurrency // args.clients,
            seed=0,
            aborts=args.aborts,
            verify_every=args.verify_every,
        )
        Client(job, aside.Value("q", 0)).run()  # caches fill, threads start
        before = settle(server.pid, storage)[0]
        outcome, readings, seconds = load(args, job, aside, server.pid, storage)
        after, abandoned = settle(server.pid, storage)
        outcome.counts["abandoned"] += abandoned
        alive = server.poll() is None
        text = log.read_text(errors="replace")  # of the end vLLM's frontend complains
    _, found, said = text.partition("Traceback (most recent")
    if found:
        outcome.problems.insert(0, (found + said)[:4000])
    return judge(args, outcome, readings, seconds, before, after, alive and not found)


def load(
    args: argparse.Namespace, job: Job, aside: Any, pid: int, storage: Path
) -> tuple[Outcome, list[soak_meter.Reading], float]:
    """Run the clients; returns what they counted, the readings and the seconds."""
    from dataclasses import replace

    seconds = args.minutes * 60
    done, outcomes = aside.Value("q", 0), aside.Queue()
    meter = soak_meter.Meter(
        pid, storage, max(1.0, seconds / 120), lambda: int(done.value)
    )
    start = time.monotonic()
    clients = []
    for seed in range(1, args.clients + 1):
        its = replace(job, seconds=seconds, seed=seed)
        clients.append(aside.Process(target=run_job, args=(its, done, outcomes)))
    for client in clients:
        client.start()
    total = Outcome()
    while any(client.is_alive() for client in clients):
        time.sleep(1.0)
        total.counts["abandoned"] += remove_abandoned(storage, age=ANSWER_SECONDS)
    readings, taken = meter.stop(), time.monotonic() - start
    for _ in clients:
        part = outcomes.get(timeout=60)
        total.counts.update(part.counts)
        total.problems += part.problems
        total.worst_error = max(total.worst_error, part.worst_error)
        total.worst_share = max(total.worst_share, part.worst_share)
    return total, readings, taken


def settle(pid: int, storage: Path) -> tuple[soak_meter.Reading, int]:
    """A reading once nothing is under way, and how many files nobody had taken."""
    end = time.monotonic() + SETTLE_SECONDS
    last = soak_meter.read(pid, storage)
    while time.monotonic() < end:
        time.sleep(6.0)  # idle connections are closed after 5 s
        now = soak_meter.read(pid, storage)
        if now.descriptors == last.descriptors and now.files == last.files:
            break
        last = now
    abandoned = remove_abandoned(storage, age=-1.0)
    return soak_meter.read(pid, storage), abandoned


def judge(
    args: argparse.Namespace,
    outcome: Outcome,
    readings: list[soak_meter.Reading],
    seconds: float,
    before: soak_meter.Reading,
    after: soak_meter.Reading,
    healthy: bool,
) -> dict[str, Any]:
    """The report; ``held`` says whether all promises held, ``broken`` which did not."""
    counts: Counter[str] = outcome.counts
    found = soak_meter.trends(readings) if len(readings) >= 8 else []
    broken = [
        f"{t.name} gained {t.gained:g} of {t.bound:g}" for t in found if not t.flat
    ]
    broken += [
        f"{counts[k]} {k}" for k in ("lost", "wrong", "errors", "refused") if counts[k]
    ]
    left = {
        name: after.descriptors.get(name, 0) - count
        for name, count in before.descriptors.items()
    }
    broken += [
        f"{n} keeps {more} more descriptors"
        for n, more in left.items()
        if more > SPARE_DESCRIPTORS
    ]
    if after.files > before.files:
        broken.append(f"{after.files - before.files} files are left")
    if counts["abandoned"] > counts["aborted"]:
        broken.append("more files are abandoned than requests were aborted")
    if not counts["verified"] or not found:
        broken.append("too short to say anything")
    if not healthy:
        broken.append("the server is gone, or its log has a traceback")
    return {
        "held": not broken,
        "broken": broken,
        "problems": outcome.problems[:20],
        "minutes": round(seconds / 60, 2),
        "concurrency": args.concurrency,
        "dtype": args.dtype,
        "counts": {"lost": 0, "wrong": 0, "errors": 0, **counts},
        "samples_per_second": round(counts["samples"] / seconds, 1),
        "tokens_per_second": round(counts["tokens"] / seconds, 1),
        "mib_per_second": round(counts["bytes"] / seconds / soak_meter.MIB, 2),
        "worst_error": outcome.worst_error,
        "worst_error_of_allowed": outcome.worst_share,
        "trends": [vars(trend) | {"flat": trend.flat} for trend in found],
        "idle_before": vars(before),
        "idle_after": vars(after),
        "readings": soak_meter.as_json(readings),
    }


def render(report: dict[str, Any]) -> str:
    """The report as text: what was done, what was held, process by process."""
    counts = report["counts"]
    names = "samples verified aborted answered_before_abort abandoned lost wrong errors"
    lines = [
        f"{report['minutes']} minutes, concurrency {report['concurrency']}, "
        f"{report['dtype']}: {report['samples_per_second']} samples/s, "
        f"{report['tokens_per_second']} tokens/s, {report['mib_per_second']} MiB/s",
        ", ".join(f"{name} {counts.get(name, 0)}" for name in names.split()),
        f"worst error {report['worst_error']:.2g}, "
        f"{report['worst_error_of_allowed']:.0%} of what is allowed",
        f"{'second half':50} {'median':>10} {'gained':>8} {'allowed':>8}",
    ]
    for trend in report["trends"]:
        lines.append(
            f"{trend['name'][:50]:50} {trend['median']:10.1f} {trend['gained']:8.1f} "
            f"{trend['bound']:8.1f} {'flat' if trend['flat'] else 'GROWS'}"
        )
    before, after = report["idle_before"], report["idle_after"]
    lines.append(
        f"idle before and after: {sum(before['descriptors'].values())} and "
        f"{sum(after['descriptors'].values())} descriptors, {before['files']} and "
        f"{after['files']} files"
    )
    lines += [f"  {problem}" for problem in report["problems"]]
    broken = "; ".join(report["broken"])
    return "\n".join([*lines, "held" if report["held"] else f"BROKEN: {broken}"])


if __name__ == "__main__":
    sys.exit(main())
