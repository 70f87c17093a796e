"""Run families on this Python's vLLM and note what came out: results.json.

    python tests/families/run_families.py [--few] [--again] [--results FILE] [NAME ...]

vLLM is imported once; each family runs in a fork of this process, with its engine in
it. A family that has a result on this release is left out unless --again, or its name,
asks for it. Without specshim it is run where the tap gave nothing right.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from family_runs import Run

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
RESULTS = HERE / "results.json"
SECONDS = {"tapped": 240, "pictured": 600, "plain": 120}
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def forked(work: Callable[[], Any], log: Path | None, seconds: int) -> Any:
    """What ``work`` gives in a fork of this process; None where it died or hung."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        if log is not None:
            file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
        signal.alarm(seconds)
        try:
            answer = pickle.dumps(work())
        except BaseException as error:
            traceback.print_exc()
            answer = pickle.dumps({"result": "broken test", "error": repr(error)})
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(answer) if answer else None


def prepare() -> str:
    """Import what every family needs; the release of vLLM."""
    import torch
    import transformers  # noqa: F401
    import vllm
    import vllm.v1.engine.core
    import vllm.v1.engine.llm_engine
    import vllm.v1.worker.cpu_worker
    from vllm.model_executor.models import registry

    assert torch.get_num_threads() == 1  # else a fork would wait for its threads
    # A fork is as apart as the subprocess in which vLLM looks at a model's class.
    registry._run_in_subprocess = lambda work: forked(work, None, 60)
    release: str = vllm.__version__
    if release.startswith(("0.18.", "0.19.")):  # they ask for these by name alone
        os.environ["LD_PRELOAD"] = "libtcmalloc libiomp"
    if release.startswith(("0.20.", "0.21.")):  # they trip over "nobind"
        core = min(os.sched_getaffinity(0))
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = str(core)
    return release


def read(path: Path) -> list[dict[str, Any]]:
    """The results so far."""
    return json.loads(path.read_text()) if path.exists() else []


def write(path: Path, results: list[dict[str, Any]]) -> None:
    """One line a result, sorted."""
    order = sorted(results, key=lambda r: (r["release"], r["model"], r["mode"]))
    lines = ",\n".join(json.dumps(result) for result in order)
    path.write_text(f"[\n{lines}\n]\n")


def cause(log: Path) -> str:
    """What a worker that ended wrote last, where its parent saw but its end."""
    found = re.findall(r"^\(Worker.*?\] (\w+Error: .*)$", log.read_text(), re.MULTILINE)
    return found[-1][:300] if found else "its worker ended"


def run_one(name: str, release: str, folder: Path) -> dict[str, Any]:
    """One cell, filled by running it: in bfloat16 where vLLM has no kernel for more."""
    from family_runs import BY_NAME

    from specshim.tiny import ARCHITECTURES

    run = BY_NAME[name]
    told = attempt(run, folder)
    if "not implemented for 'Float'" in told.get("error", ""):
        run = replace(run, dtype="bfloat16")
        told = attempt(run, folder)
    return {
        "release": release,
        "model": run.model,
        "architecture": ARCHITECTURES[run.model].config["architectures"][0],
        "dtype": run.served_dtype,
        "mode": run.mode,
        **told,
        **({"note": run.why} if run.why else {}),
        "date": datetime.date.today().isoformat(),
    }


def attempt(run: Run, folder: Path) -> dict[str, Any]:
    """What the checks of ``run`` see, without specshim where it is not right."""
    from one_family import CHECKS

    told: dict[str, Any] = {}
    for check in (run.check, "plain"):
        log = folder / f"{run.name.replace('/', '-')}-{check}.log"
        work = CHECKS[check]
        limit = SECONDS[check]
        died = {"result": "no answer", "error": f"no answer within {limit} s"}
        seen = forked(lambda work=work: work(run, folder), log, limit)
        for key, said in (seen or {}).items():
            if isinstance(said, str) and "EOFError: _recv" in said:
                seen[key] = said.replace("EOFError: _recv: raise EOFError", cause(log))
        told |= seen or (
            died
            if check != "plain"
            else {"plain": f"without specshim it gives no answer within {limit} s"}
        )
        if told["result"] in ("right", "no reference"):
            break
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="of family_runs.py; default: all")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--few", action="store_true", help="those of every release")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--folder", type=Path, help="for models and logs")
    args = parser.parse_args()
    os.environ.update({k: v for k, v in SETTINGS.items() if k not in os.environ})
    from family_runs import BY_NAME, FEW

    unknown = [name for name in args.names if name not in BY_NAME]
    if unknown:
        parser.error(f"no such family: {', '.join(unknown)}; see family_runs.py")
    folder = args.folder or Path(tempfile.mkdtemp(prefix="specshim-families-"))
    folder.mkdir(parents=True, exist_ok=True)
    release = prepare()
    done = (
        {(r["release"], r["model"], r["mode"]) for r in read(args.results)}
        if not (args.again or args.names)
        else set()
    )
    names = [
        name
        for name in args.names or (FEW if args.few else BY_NAME)
        if (release, BY_NAME[name].model, BY_NAME[name].mode) not in done
    ]
    print(f"vLLM {release}: {len(names)} families; logs in {folder}", flush=True)
    for number, name in enumerate(names, start=1):
        started = time.monotonic()
        result = run_one(name, release, folder)
        same = (release, result["model"], result["mode"])
        kept = [
            r
            for r in read(args.results)
            if (r["release"], r["model"], r["mode"]) != same
        ]
        write(args.results, [*kept, result])
        worst = f" {result['worst']:g}" if "worst" in result else ""
        print(
            f"{number}/{len(names)} {name}: {result['result']}{worst} "
            f"({time.monotonic() - started:.0f} s) {result.get('error', '')} "
            f"{result.get('plain', '')}".rstrip(),
            flush=True,
        )


if __name__ == "__main__":
    main()
