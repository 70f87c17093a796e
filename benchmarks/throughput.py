"""Prefill throughput of plain serving, the tap and stock extraction, in turn.

    python -m benchmarks.throughput --modes plain,tap,stock --shapes llama-8b \
        --transports offline,http --storage /dev/shm/bench --limit-s 540
    python -m benchmarks.throughput --device cpu --shapes tiny --lengths 64,mixed \
        --repeats 2 --tokens 512                       # for development

Runs in vLLM's environment, from the root of a checkout. What is in the results file
is not measured again: the same command goes on where an earlier one stopped, at its
time limit (exit code 3) or otherwise. Exit code 1 where a file was missing or wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import files, startup
from benchmarks.cells import (
    DECODE,
    MIXED,
    MODES,
    SHAPES,
    SLOW,
    TRANSPORTS,
    Cell,
    Shape,
    fits_too,
    gpu_share,
    in_turn,
    known_prompts,
    waves,
)
from benchmarks.engines import Engine, served
from benchmarks.measure import (
    DECODE_LENGTH,
    Bench,
    Limit,
    measure_decode,
    measure_prefill,
    warm,
)
from benchmarks.models import model_folder
from benchmarks.results import Results, facts, gpus, release_of
from benchmarks.setup import Setup
from specshim.server_process import ServerFailed

STOPPED = 3
_START_S = {"cpu": 60.0, "cuda": 150.0}  # of an engine, before one was started
_SPARE_S = 15.0  # to leave in order


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--modes", default="plain,tap,stock", help=f"of {', '.join(MODES)}")
    add("--shapes", default="llama-8b", help=f"of {', '.join(SHAPES)}")
    add("--transports", default="offline,http")
    add("--lengths", default=f"256,1024,8192,{MIXED}", help="tokens of a prompt")
    add("--longest", type=int, default=8192, help="tokens, in the mixed set")
    add("--parts", default="prefill,decode,slow,files,startup")
    add("--repeats", type=int, default=5, help="rounds of each cell")
    add("--tokens", type=int, help="prompt tokens of a measurement")
    add("--batched", type=int, help="max_num_batched_tokens of every mode")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--results", type=Path, help="default: benchmarks/results/DEVICE.json")
    add("--storage", type=Path, default=Path("/dev/shm/specshim-bench"))
    add("--disk", type=Path, help="a folder on a disk, for the part files")
    add("--work", type=Path, help="models, logs, references (default: temporary)")
    add("--max-gib", type=float, default=16.0, help="of files, or half of what is free")
    add("--limit-s", type=float, default=1e9, help="stop before so many seconds")
    add("--sink-mb", type=float, default=100.0, help="a second, in the part slow")
    add("--slow-s", type=float, default=60.0, help="seconds of the part slow")
    add("--decode-tokens", type=int, default=128)
    add("--reference", choices=("hooks", "transformers", "none"))
    add("--eager", action="store_true", help="neither compiled nor graphs")
    add(
        "--together",
        action="store_true",
        help="start a cell's servers at the same time, with KV caches of a fixed size: "
        "quicker, but tells nothing of capacity",
    )
    add("--retry", action="store_true", help="what could not start or failed, too")
    args = parser.parse_args(argv)
    for name, known in (
        ("modes", MODES),
        ("shapes", SHAPES),
        ("transports", TRANSPORTS),
        ("parts", ("prefill", "decode", "slow", "files", "startup")),
        ("lengths", None),
    ):
        given = getattr(args, name).split(",")
        for one in given:
            if known is None and (one.isdigit() or one == MIXED):
                continue
            if known is None or one not in known:
                parser.error(f"--{name} does not take {one!r}")
        setattr(args, name, given)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    limit = Limit(args.limit_s - _SPARE_S)
    results = Results(
        args.results or Path(__file__).parent / "results" / f"{args.device}.json"
    )
    args.storage.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        work = args.work or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        )
        work.mkdir(parents=True, exist_ok=True)
        run = {**facts(args.storage), "device": args.device, "argv": sys.argv[1:]}
        run["id"] = f"{run['date']} {len(results.data['runs'])}"
        run["release"] = release_of("vllm")
        bench = Bench(args, results, limit, work, run)
        try:
            everything(bench)
        except Limit.Reached as reached:
            print(f"Stopped before {reached}; the same command goes on.")
            return STOPPED
    bad = bench.bad
    print(f"Done: {results.path}" + (f"; {bad} measurements failed" if bad else ""))
    return 1 if bad else 0


def everything(bench: Bench) -> None:
    parts = bench.args.parts
    if "startup" in parts:
        startup.measure(bench)
    if "files" in parts:
        files.measure(bench)
    for name in bench.args.shapes:
        for group in groups(bench, SHAPES[name]):
            serve_group(bench, group)


@dataclass(frozen=True)
class Group:
    """Servers that run at the same time, and the cells that they are measured in."""

    shape: Shape
    transport: str
    modes: tuple[str, ...]
    cells: tuple[str, ...]
    sink_bytes: float = 0.0


def groups(bench: Bench, shape: Shape) -> Iterator[Group]:
    args = bench.args
    found = gpus() if args.device == "cuda" else []
    gib = found[0]["gib"] if found else None
    for transport in args.transports:
        cells = list(args.lengths) if "prefill" in args.parts else []
        if "decode" in args.parts and transport == "offline":
            cells.append(DECODE)
        for wave in waves(shape, args.modes, gib) if cells else []:
            yield Group(shape, transport, tuple(wave), tuple(cells))
    if "slow" in args.parts and "tap" in args.modes:
        transport = args.transports[-1]
        yield Group(shape, transport, ("tap",), (SLOW,), args.sink_mb * 1e6)


def serve_group(bench: Bench, group: Group) -> None:
    """Start what is needed for what is not measured yet, and measure it."""
    modes = [m for m in group.modes if bench.startable(group, m)]
    todo = [
        (what, repeat)
        for what in group.cells
        for repeat in range(bench.repeats(what))
        if any(not bench.has(group, what, mode, repeat) for mode in modes)
    ]
    if not todo:
        return
    shape, args = group.shape, bench.args
    whats = [*group.cells, *(args.lengths if group.cells == (SLOW,) else [])]
    known = known_prompts(shape, whats)
    extra = [DECODE_LENGTH + args.decode_tokens]
    extra += [args.longest] if MIXED in whats else []
    model = model_folder(shape, bench.work / "models", bench.release)
    setup = Setup(
        shape=shape,
        mode="plain",
        model=model,
        storage=args.storage,
        work=bench.work,
        longest=max([*known, *extra]),
        batched=args.batched or (8448 if args.device == "cuda" else 512),
        device=args.device,
        eager=args.eager or args.device == "cpu",
        sink_bytes=group.sink_bytes,
    )
    with ExitStack() as stack:
        engines = start_all(bench, group, setup, modes, list(known.values()), stack)
        for mode, engine in list(engines.items()):
            failure = warm(bench, engine, setup, mode, known)
            if failure:  # it came up, and dies of the first requests
                entry = bench.entry(group.shape, group.transport, mode)
                bench.results.add("engines", {**entry, "error": failure})
                bench.say(f"{shape.name}-{mode} cannot answer: {failure}")
                del engines[mode]
        for what, repeat in todo if engines else ():
            cell = Cell(shape, group.transport, what)
            bench.limit.need(bench.round_seconds(cell, engines), f"{what} {repeat}")
            for mode in in_turn(list(engines), repeat):
                if bench.has(group, what, mode, repeat):
                    continue
                one = measure_decode if what == DECODE else measure_prefill
                one(bench, engines[mode], setup, cell, mode, repeat, known)


def start_all(
    bench: Bench,
    group: Group,
    setup: Setup,
    modes: Sequence[str],
    known: list[list[int]],
    stack: ExitStack,
) -> dict[str, Engine]:
    """The reference, and the engines of those modes that can run."""
    setup = replace(setup, share=gpu_share(len(modes)))
    if not bench.args.together:
        bench.make_reference(replace(setup, share=gpu_share(1)), known)
        one = [start(bench, group, setup, mode, stack) for mode in modes]
    else:
        first = False
        if setup.device == "cuda":
            setup = replace(setup, kv_gib=group.shape.kv_gib)
            first = not fits_too(group.shape, len(modes), gpus()[0]["gib"])
        if first:
            bench.make_reference(setup, known)
        bench.note_run()
        stacks = [stack.enter_context(ExitStack()) for _ in modes]
        with ThreadPoolExecutor(len(modes)) as pool:
            starting = [
                pool.submit(start, bench, group, setup, mode, own)
                for mode, own in zip(modes, stacks, strict=True)
            ]
            if not first:
                bench.make_reference(setup, known)
            one = [each.result() for each in starting]
    return {m: engine for m, engine in zip(modes, one, strict=True) if engine}


def start(
    bench: Bench, group: Group, setup: Setup, mode: str, stack: ExitStack
) -> Engine | None:
    """The engine, or None where the mode cannot run; both are in the results."""
    own = replace(setup, mode=mode, storage=setup.storage / mode)
    own.storage.mkdir(exist_ok=True)
    entry = bench.entry(group.shape, group.transport, mode)
    if setup.sink_bytes:  # alone on the GPU, so not to be compared with the others
        entry["transport"] += " slow"
    before = gpus()
    seconds = bench.start_seconds(group, mode, _START_S[setup.device])
    bench.limit.need(seconds, f"starting {own.name}")
    begin = time.monotonic()
    try:
        engine: Engine = stack.enter_context(served(own, group.transport))
    except ServerFailed as error:
        bench.say(f"{own.name} {group.transport} cannot run: {error}")
        bench.results.add("engines", {**entry, "error": str(error)})
        return None
    took = time.monotonic() - begin
    after = gpus()
    if own.kv_gib:
        entry["kv_gib_given"] = own.kv_gib
    elif after:
        entry["gpu_gib"] = round(after[0]["used_gib"] - before[0]["used_gib"], 2)
        entry["share"] = own.share
    if mode == "tap" and setup.device == "cuda":
        size = setup.batched * setup.shape.token_bytes
        entry["tap_gpu_gib"] = round(2 * size / (1 << 30), 3)  # buffer and snapshot
    bench.results.add("engines", {**entry, **engine.facts})
    bench.say(f"{own.name} {group.transport} is up after {took:.0f} s")
    return engine


if __name__ == "__main__":
    sys.exit(main())
