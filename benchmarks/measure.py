"""One measurement at a time: prompts, files, memory, and what goes into the results."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import memory, reference, samples
from benchmarks.cells import (
    CONCURRENCY,
    DECODE,
    MODES,
    SLOW,
    Cell,
    Shape,
    known_for,
    lengths,
    prompts_of,
)
from benchmarks.engines import Answers, Engine
from benchmarks.results import Results
from benchmarks.setup import Setup
from specshim.server_process import ServerFailed

_WAIT_S = 60.0  # for files, after the last answer
_DECODE_PROMPTS, DECODE_LENGTH = 64, 64  # together less than a step takes


class Limit:
    """The time that this run has."""

    class Reached(Exception):
        """What comes next would not be done in time."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def need(self, seconds: float, what: str) -> None:
        """Raises Reached where ``seconds`` are not left."""
        if time.monotonic() + seconds > self._end:
            raise self.Reached(what)


class Bench:
    """A run: its arguments, results, time, and references by shape."""

    def __init__(
        self,
        args: argparse.Namespace,
        results: Results,
        limit: Limit,
        work: Path,
        run: dict[str, Any],
    ) -> None:
        self.args, self.results, self.limit, self.work = args, results, limit, work
        self.run, self.release = run, run["release"]
        self.begin = time.time()
        self.bad = 0
        self.known: dict[int, Any] = {}
        self._noted = False

    def say(self, text: str) -> None:
        print(f"{time.time() - self.begin:6.1f} s  {text}", flush=True)

    def entry(self, shape: Shape, transport: str, mode: str) -> dict[str, Any]:
        """What all entries of a server have; the run is noted with its first one."""
        self.note_run()
        return {
            "run": self.run["id"],
            "release": self.release,
            "device": self.args.device,
            "shape": shape.name,
            "transport": transport,
            "mode": mode,
        }

    def note_run(self) -> None:
        if not self._noted:
            self.results.add("runs", self.run)
            self._noted = True

    def repeats(self, what: str) -> int:
        return 1 if what == SLOW else int(self.args.repeats)

    def startable(self, group: Any, mode: str) -> bool:
        """Whether the mode has not failed to start before."""
        found = self._find("engines", group, mode)
        return self.args.retry or found is None or "error" not in found

    def has(self, group: Any, what: str, mode: str, repeat: int) -> bool:
        """Whether this was measured; what failed is tried again with ``--retry``."""
        more = {"what": what, "repeat": repeat}
        found = self._find("measurements", group, mode, **more)
        return found is not None and not (self.args.retry and found["problems"])

    def _find(
        self, section: str, group: Any, mode: str, **more: Any
    ) -> dict[str, Any] | None:
        return self.results.find(
            section,
            release=self.release,
            device=self.args.device,
            shape=group.shape.name,
            transport=group.transport,
            mode=mode,
            **more,
        )

    def start_seconds(self, group: Any, mode: str, default: float) -> float:
        """About how long the engine takes to start."""
        found = self._find("engines", group, mode) or {}
        return float(found.get("start_seconds", default))

    def round_seconds(self, cell: Cell, engines: Mapping[str, Engine]) -> float:
        """About how long a round of the cell takes, by what was measured of it."""
        total = 0.0
        for mode in engines:
            found = self._find("measurements", cell, mode, what=cell.what)
            default = self.args.slow_s if cell.what == SLOW else 30.0
            total += 1.2 * float((found or {}).get("all_seconds", default))
        return total

    def make_reference(self, setup: Setup, prompts: Sequence[list[int]]) -> None:
        how = self.args.reference
        if how is None:
            how = "transformers" if setup.shape.tiny else "hooks"
        if how == "none" or not any(MODES[m].extracts for m in self.args.modes):
            return
        if not all(samples.digest(prompt) in self.known for prompt in prompts):
            if setup.device == "cuda":
                self.limit.need(90.0, "the reference")
            plain = replace(setup, sink_bytes=0.0)
            self.known.update(reference.make(plain, how, prompts))
            self.say(f"reference of {len(prompts)} prompts, by {how}")


def warm(
    bench: Bench,
    engine: Engine,
    setup: Setup,
    mode: str,
    known: Mapping[int, list[int]],
) -> str:
    """Everything that happens once has happened: kernels, threads, files.

    Returns why the mode cannot be measured, or "".
    """
    prompts = [prompt for prompt in known.values() for _ in range(2)]
    try:
        answers = engine.prefill(prompts)
    except (ServerFailed, OSError) as error:
        return f"{error}"
    if answers.errors:
        return answers.errors[0]
    if MODES[mode].extracts:
        storage = setup.storage / mode
        sweep = samples.Sweep(storage, _rows_of(setup), (), bench.args.storage / "kept")
        sweep.finish(answers.paths, _WAIT_S)
    return ""


def _rows_of(setup: Setup) -> tuple[int, int]:
    return len(setup.shape.layer_ids), setup.shape.hidden


def measure_prefill(
    bench: Bench,
    engine: Engine,
    setup: Setup,
    cell: Cell,
    mode: str,
    repeat: int,
    known: Mapping[int, list[int]],
) -> None:
    """Tokens a second until the last answer and the last byte of the last file."""
    begin = time.monotonic()
    args, shape = bench.args, cell.shape
    prompts = _prompts(bench, setup, cell, repeat, known)
    tokens = sum(map(len, prompts))
    storage = setup.storage / mode
    keep = {d for p in prompts if (d := samples.digest(p)) in bench.known}
    sweep = samples.Sweep(storage, _rows_of(setup), keep, bench.args.storage / "kept")
    extracts = MODES[mode].extracts
    most = min(args.max_gib * (1 << 30), shutil.disk_usage(args.storage).free / 2)
    during = tokens * shape.token_bytes > most
    interval = 0.25 if cell.what != SLOW else 1.0
    with memory.metered(engine.pid, storage, bench.begin, interval) as host:
        if extracts and (during or cell.what == SLOW):
            sweep.start()
        answers = engine.prefill(prompts)
        if extracts:
            slowest = tokens * shape.token_bytes / (setup.sink_bytes or 1e18)
            sweep.finish(answers.paths, _WAIT_S + slowest)
    entry = {
        **bench.entry(shape, cell.transport, mode),
        "what": cell.what,
        "repeat": repeat,
        "prompts": len(prompts),
        "tokens": tokens,
        "began": round(answers.start, 4),
        "answer_seconds": round(answers.end - answers.start, 4),
        "swept": "during" if during or cell.what == SLOW else "after",
    }
    last = answers.end
    wrong = list(answers.errors)
    if extracts:
        found = sweep.found
        last = max([last, *(found[p].complete_at for p in answers.paths if p in found)])
        wrong += samples.problems(answers.paths, prompts, found)
        entry["files"] = len(found)
        entry["bytes"] = sum(one.bytes for one in found.values())
        entry["compared"] = _compare(bench, sweep)
        wrong += [
            f"a sample of {one['tokens']} tokens is not what the reference has"
            for one in entry["compared"]
            if not one["right"]
        ]
        wrong += _left(storage)
    entry["seconds"] = round(last - answers.start, 4)
    entry["tokens_per_second"] = round(tokens / (last - answers.start), 1)
    entry["problems"] = wrong[:5]
    entry["memory"] = host
    if cell.what == SLOW or mode == "tap":
        time.sleep(0.6)  # the worker tells it every quarter of a second
        stats = replace(setup, mode=mode).stats
        entry["worker"] = memory.told(stats, answers.start - 0.5, last + 0.5)
    if cell.what == SLOW:
        entry["sink_bytes"] = setup.sink_bytes
        entry["rss_gain_mib"] = round(memory.gain(host["seconds"], host["rss_mib"]))
    _note(bench, entry, begin)
    speed = f"{entry['tokens_per_second']:.0f} tokens/s"
    bench.say(f"{shape.name} {cell.transport} {cell.what} {mode} {repeat}: {speed}")
    for problem in entry["problems"]:
        bench.say(f"  {problem}")


def _prompts(
    bench: Bench, setup: Setup, cell: Cell, repeat: int, known: Mapping[int, list[int]]
) -> list[list[int]]:
    args = bench.args
    tokens = args.tokens or cell.shape.tokens
    if cell.what == SLOW:
        bytes_in_all = setup.sink_bytes * args.slow_s
        tokens = int(bytes_in_all / cell.shape.token_bytes)
        cell = replace(cell, what=_middle(known))
    least = CONCURRENCY if cell.transport == "http" else 1
    if setup.device == "cpu":
        least = min(least, 4)
    counts = lengths(cell, args.longest, tokens, least)
    return prompts_of(cell, repeat, counts, known_for(cell, known))


def _middle(known: Mapping[int, list[int]]) -> str:
    sizes = sorted(known)
    return str(sizes[len(sizes) // 2])


def _compare(bench: Bench, sweep: samples.Sweep) -> list[dict[str, Any]]:
    found = []
    for path in sweep.kept.values():
        found.append(reference.compare(path, bench.known))
        path.unlink()
    return found


def _left(storage: Path) -> list[str]:
    """Nothing may lie there once all files are taken; the next one starts empty."""
    left = sorted(path.name for path in storage.iterdir())
    for name in left:
        samples.remove(str(storage / name))
    return [f"{len(left)} files are left: {', '.join(left[:3])}"] if left else []


def _note(bench: Bench, entry: dict[str, Any], begin: float) -> None:
    entry["all_seconds"] = round(time.monotonic() - begin, 1)
    bench.bad += bool(entry["problems"])
    bench.results.add("measurements", entry)


def measure_decode(
    bench: Bench,
    engine: Engine,
    setup: Setup,
    cell: Cell,
    mode: str,
    repeat: int,
    known: Mapping[int, list[int]],
) -> None:
    """Seconds between two tokens, with so many requests in the batch."""
    begin = time.monotonic()
    args = bench.args
    own = replace(cell, what=str(DECODE_LENGTH))
    few = _DECODE_PROMPTS if setup.device == "cuda" else 4
    prompts = prompts_of(own, repeat, [DECODE_LENGTH] * few, [])
    answer = engine.ask("decode", prompts=prompts, tokens=args.decode_tokens)
    entry = {
        **bench.entry(cell.shape, cell.transport, mode),
        "what": DECODE,
        "repeat": repeat,
        "prompts": few,
        "new_tokens": args.decode_tokens,
        "token_seconds": round(median(answer["seconds"]), 7),
        "problems": [],
    }
    if MODES[mode].extracts:
        paths = Answers(0, 0, answer["said"]).paths
        storage = setup.storage / mode
        sweep = samples.Sweep(storage, _rows_of(setup), (), bench.args.storage / "kept")
        sweep.finish(paths, _WAIT_S)
        entry["problems"] = samples.problems(paths, prompts, sweep.found)[:5]
    _note(bench, entry, begin)
    each = f"{1000 * entry['token_seconds']:.3f} ms a token"
    bench.say(f"{cell.shape.name} decode {mode} {repeat}: {each}")
