"""Acceptance length of a drafter trained on right states against one trained on what
stock vLLM delivers for the same hybrid model.

    python benchmarks/acceptance/acceptance.py --folder F \\
        --vllm-python P --train-python Q

Stages: toy, then states, train, evaluate, decode for each of the two kinds, right and
stock. Each leaves a JSON in the folder and is skipped where that is there, unless it
failed. Runs in any Python with specshim; ``--vllm-python`` names the one with vLLM
(0.24.0 has the fault) and specshim, ``--train-python`` that with speculators 0.9 and
specshim. Nothing is fetched. Stock's server has its worker in a process of its own, as
on several GPUs: on one, 0.24.0 is right by luck. On the CPU, where stock extraction
does not start, specshim's aids for the CPU are in place and its repair of the fault is
not.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specshim.server_process import free_port, last_lines, running, wait_until_healthy

HERE = Path(__file__).parent
TRAINER = HERE.parents[1] / "examples" / "train.py"
PROMPT = 64  # tokens of held-out text, as in toy.py; the target writes the rest
KINDS = ("right", "stock")
# A worker in a process of its own: what it is with several GPUs, and what it takes for
# vLLM 0.24.0 to show its fault on one.
SEVERAL_GPUS = ("--distributed-executor-backend", "mp")


class StageFailed(Exception):
    """What a stage says when it can't be done."""


def main() -> int:
    options = arguments()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for stage, kind in parts(options):
        name = f"{stage}-{kind}" if kind else stage
        if known(folder, name).get("failed", True) is None:
            continue
        start = time.monotonic()
        found: dict[str, Any] = {"failed": None}
        try:
            found |= STAGES[stage](options, kind)
        except Exception as error:
            found["failed"] = f"{type(error).__name__}: {error}"
            failed.append(name)
        found["seconds"] = round(time.monotonic() - start)
        part = folder / f"{name}.part"
        part.write_text(json.dumps(found, indent=2) + "\n")
        part.rename(folder / f"{name}.json")
        print(f"{name}: {json.dumps(found)}", flush=True)
    print(table(folder))
    return 1 if failed else 0


def parts(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    for stage in STAGES if options.stages is None else options.stages:
        for kind in ("",) if stage == "toy" else options.kinds:
            yield stage, kind


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--vllm-python", default=sys.executable)
    parser.add_argument("--train-python", default=sys.executable)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--stages",
        nargs="*",
        choices=[*STAGES],
        help="only these; with none, the table",
    )
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--minutes", type=float, default=4, help="to train the toy")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--megabytes", type=float, default=4, help="of text")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--window", type=int, default=64, help="tokens, of the toy's")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--samples", type=int, default=256, help="for the drafter")
    parser.add_argument("--prompts", type=int, default=16, help="to measure on")
    parser.add_argument("--epochs", type=int, default=4, help="of the drafter")
    parser.add_argument("--rate", type=float, default=2e-3, help="of learning, its")
    parser.add_argument("--packed", type=int, default=4, help="samples in a step")
    parser.add_argument("--drafted", type=int, default=3, help="tokens per step")
    parser.add_argument(
        "--server-arguments", default="", help="more for vLLM, in one string"
    )
    parser.add_argument(
        "--start-seconds", type=float, default=900, help="for a server, at most"
    )
    return parser.parse_args()


def layer_ids(options: argparse.Namespace) -> list[str]:
    """Of the drafter; the server appends the last layer."""
    return [str(i) for i in (2, options.layers // 2, options.layers - 2)]


def toy(options: argparse.Namespace, _: str) -> dict[str, Any]:
    said = run(
        [
            *(options.vllm_python, str(HERE / "toy.py"), str(options.folder / "toy")),
            *("--device", options.device, "--minutes", str(options.minutes)),
            *("--hidden", str(options.hidden), "--layers", str(options.layers)),
            *("--vocabulary", str(options.vocabulary), "--batch", str(options.batch)),
            *("--megabytes", str(options.megabytes)),
            *("--length", str(options.window), "--sample-length", str(options.length)),
            *("--samples", str(options.samples), "--prompts", str(options.prompts)),
        ],
        options.folder / "toy.log",
        show=True,
    )
    return {"said": said.splitlines()[-1]}


def states(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    """The drafter's samples as ``kind`` delivers them.

    The tap also answers for what is measured on: held-out prompts with what the target
    writes after them.
    """
    names = ("train", "heldout") if kind == "right" else ("train",)
    for name in names:
        prepare(options, kind, name)
    with serving(options, kind) as url:
        for name in names:
            generate(options, url, kind, name)
    return look(options, kind)


def train(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    command = [
        *(options.train_python, str(TRAINER)),
        *("--speculator-type", "eagle3"),
        *("--verifier-name-or-path", str(options.folder / "toy")),
        *("--data-path", str(data(options, kind, "train")), "--on-missing", "raise"),
        *("--save-path", str(options.folder / f"drafter-{kind}")),
        *("--epochs", str(options.epochs), "--lr", str(options.rate)),
        *("--checkpoint-freq", "1"),
        *("--total-seq-len", str(options.packed * options.length)),
        *("--num-workers", "0", "--log-freq", "20"),
        *("--ttt-steps", str(options.drafted)),
        *("--target-layer-ids", *layer_ids(options)),
        *("--no-resume-from-checkpoint", "--hidden-states-dtype", "float32"),
        *("--draft-attn-impl", "eager", "--loss-implementation", "eager"),
    ]
    # The guard would refuse what stock delivers; the targets are the same for both.
    only = {"SPECSHIM_ONLY": "mis-scaled-targets"} if kind == "stock" else {}
    run(command, options.folder / f"train-{kind}.log", UNCOMPILED | only)
    return {"checkpoint": str(checkpoint(options, kind))}


def evaluate(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    """The drafter on right states of the target's own text."""
    command = [
        *(options.train_python, str(HERE / "evaluate.py")),
        *(str(checkpoint(options, kind)), str(options.folder / "toy")),
        *(str(data(options, "right", "heldout") / "hidden_states"),),
        *("--written-from", str(PROMPT), "--drafted", str(options.drafted)),
    ]
    said = run(command, options.folder / f"evaluate-{kind}.log", UNCOMPILED)
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def decode(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    """The drafter at work in vLLM, which counts what it accepts."""
    with serving(options, f"decode-{kind}") as url:
        ask(url, options)
        return accepted(url)


STAGES: dict[str, Callable[[argparse.Namespace, str], dict[str, Any]]] = {
    stage.__name__: stage for stage in (toy, states, train, evaluate, decode)
}
# Compiling a drafter of this size takes longer than what it saves.
UNCOMPILED = {"TORCHDYNAMO_DISABLE": "1", "TORCH_COMPILE_DISABLE": "1"}


def data(options: argparse.Namespace, kind: str, name: str) -> Path:
    """Prepared samples; their states are in ``hidden_states``, where train looks."""
    folder: Path = options.folder
    return folder / f"states-{kind}" / name


def checkpoint(options: argparse.Namespace, kind: str) -> Path:
    folder = options.folder / f"drafter-{kind}"
    numbers = [int(p.name) for p in folder.iterdir() if p.name.isdigit()]
    found: Path = folder / str(max(numbers))
    return found


@contextmanager
def serving(options: argparse.Namespace, kind: str) -> Iterator[str]:
    """The address of a server that extracts states, or that decodes with a drafter.

    Raises:
        StageFailed: the server, or what was asked of it, failed.
    """
    port = free_port()
    log = options.folder / f"serve-{kind}.log"
    command, variables = server(options, kind, port)
    with running(command, log, environment(options, **variables)) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until_healthy(process, url, options.start_seconds)
            yield url
        except StageFailed:
            raise
        except Exception as error:
            text = " | ".join([str(error), *cause(log), f"see {log}"])
            raise StageFailed(text) from error


def cause(log: Path) -> list[str]:
    """The first error that the server's log names, where it names one."""
    lines = [line for line in last_lines(log, 4000) if "Error: " in line]
    return ([line for line in lines if "ERROR" in line] or lines[-1:])[:1]


def server(
    options: argparse.Namespace, kind: str, port: int
) -> tuple[list[str], dict[str, str]]:
    """Command line and variables of the server of ``kind``."""
    folder: Path = options.folder
    model = str(folder / "toy")
    length = max(512, 2 * options.length)
    common = ["--port", str(port), "--max-model-len", str(length), "--enforce-eager"]
    if options.device == "cpu":  # what its GDN kernels take
        common += ["--mamba-ssm-cache-dtype", "float32"]
    common += shlex.split(options.server_arguments)
    if kind.startswith("decode"):
        speculation = {
            "method": "eagle3",
            "model": str(checkpoint(options, kind.removeprefix("decode-"))),
            "num_speculative_tokens": options.drafted,
        }
        module = "vllm.entrypoints.openai.api_server"
        command = [options.vllm_python, "-m", module, "--model", model, *common]
        return [*command, "--speculative-config", json.dumps(speculation)], {}
    command = [options.vllm_python, "-m", "specshim.launch_vllm", model]
    command += ["--hidden-states-path", str(folder / f"served-{kind}")]
    command += ["--target-layer-ids", *layer_ids(options), "--", *common]
    if kind == "right":
        return command, {}
    command += SEVERAL_GPUS
    if options.device == "cuda":
        return command, {"SPECSHIM": "0"}
    plugin = without_amx(folder / "without-amx")
    return command, {
        "SPECSHIM_ROUTE": "cache",
        "SPECSHIM_DISABLE": "hybrid-zero-states",
        "PYTHONPATH": os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")]),
    }


def without_amx(folder: Path) -> Path:
    """A vLLM plugin, as an installed package, that denies AMX.

    vLLM's GDN kernel for AMX takes no convolution state with room for drafted tokens,
    which extraction, being a speculative method, asks for; plain torch's does.
    """
    told = folder / "without_amx-1.dist-info"
    told.mkdir(parents=True, exist_ok=True)
    (told / "METADATA").write_text("Name: without-amx\nVersion: 1\n")
    (told / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nwithout_amx = without_amx:register\n"
    )
    (folder / "without_amx.py").write_text(
        "def register():\n"
        "    import torch\n"
        "    torch.cpu._is_amx_tile_supported = lambda: False\n"
    )
    return folder


def environment(options: argparse.Namespace, **more: str) -> dict[str, str]:
    found = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **more}
    if options.device == "cpu":
        found.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    return found


def ask(url: str, options: argparse.Namespace) -> None:
    """Have the target go on from the held-out prompts, greedily."""
    text = (options.folder / "toy" / "heldout.jsonl").read_text()
    prompts = [json.loads(row)["input_ids"][:PROMPT] for row in text.splitlines()]

    def one(prompt: list[int]) -> None:
        body = {
            "model": str(options.folder / "toy"),
            "prompt": prompt,
            "max_tokens": options.length - PROMPT,
            "temperature": 0,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            answer.read()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, prompts))


def accepted(url: str) -> dict[str, float]:
    """vLLM's own count: accepted tokens per drafting step, and the target's own."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        return counted(answer.read().decode())


def counted(metrics: str) -> dict[str, float]:
    """Acceptance length from the text of vLLM's /metrics.

    Raises:
        StageFailed: nothing was drafted.
    """
    counts = {"num_drafts": 0.0, "num_accepted_tokens": 0.0}
    for line in metrics.splitlines():
        for name in counts:
            if line.startswith(f"vllm:spec_decode_{name}_total"):
                counts[name] += float(line.split()[-1])
    drafts = counts["num_drafts"]
    if not drafts:
        raise StageFailed("vLLM drafted nothing")
    return {"length": 1 + counts["num_accepted_tokens"] / drafts, "drafts": drafts}


def prepare(options: argparse.Namespace, kind: str, name: str) -> None:
    """speculators' own prepare-data on rows that are tokens already."""
    shutil.rmtree(data(options, kind, name), ignore_errors=True)  # of an earlier try
    source = options.folder / "toy" / f"{name}.jsonl"
    command = [
        *speculators(options),
        *("prepare-data", "--model", str(options.folder / "toy")),
        *("--data", str(source), "--output", str(data(options, kind, name))),
        *("--seq-length", str(options.length)),
        *("--num-preprocessing-workers", "1"),
    ]
    run(command, options.folder / f"prepare-{kind}-{name}.log")


def generate(options: argparse.Namespace, url: str, kind: str, name: str) -> None:
    """speculators' own generation of the states of ``name``, as files."""
    folder = data(options, kind, name)
    command = [
        *speculators(options),
        *("generate-offline-data", "--model", str(options.folder / "toy")),
        *("--endpoint", f"{url}/v1", "--concurrency", "8"),
        *("--preprocessed-data", str(folder)),
        *("--output", str(folder / "hidden_states")),
    ]
    # Without SPECSHIM=0 the guard would refuse what stock delivers.
    off = {"SPECSHIM": "0"} if kind == "stock" else {}
    run(command, options.folder / f"generate-{kind}-{name}.log", off)


def speculators(options: argparse.Namespace) -> list[str]:
    return [options.train_python, "-m", "speculators"]


def look(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Rows of the drafter's samples, and those that are zero in every layer."""
    script = (
        "import json, sys; from pathlib import Path\n"
        "from safetensors.torch import load_file\n"
        "files = sorted(Path(sys.argv[1]).glob('hs_*.safetensors'))\n"
        "states = [load_file(file)['hidden_states'] for file in files]\n"
        "print(json.dumps({'files': len(files), 'rows': sum(map(len, states)),\n"
        "    'zero_rows': sum(int((s == 0).all(-1).all(-1).sum()) for s in states)}))"
    )
    folder = data(options, kind, "train") / "hidden_states"
    command = [options.train_python, "-c", script, str(folder)]
    found: dict[str, Any] = json.loads(
        run(command, options.folder / f"look-{kind}.log").splitlines()[-1]
    )
    return found


def run(
    command: Sequence[str],
    log: Path,
    more: Mapping[str, str] | None = None,
    *,
    show: bool = False,
) -> str:
    """The standard output of ``command``; all of it is in ``log``, as it comes.

    Args:
        more: variables of the environment.
        show: print the lines of the standard output, too.

    Raises:
        StageFailed: it failed; the end of the log is shown.
    """
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    variables |= more or {}
    said = []
    with log.open("a") as errors, log.open("a") as output:
        process = subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            output.write(line)
            output.flush()
            if show:
                print(line, end="", flush=True)
    if process.wait():
        print("\n".join(last_lines(log, 30)), file=sys.stderr)
        end = [line for line in last_lines(log, 400) if "Error: " in line][-1:]
        text = " | ".join([*end, f"{' '.join(command[:4])} ...", f"see {log}"])
        raise StageFailed(text)
    return "".join(said)


def known(folder: Path, name: str) -> dict[str, Any]:
    """What a part has left; nothing if it has not run."""
    path = folder / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def table(folder: Path) -> str:
    """What there is so far, a line per drafter."""
    text = [
        "Stock's worker is a process of its own, as on several GPUs.",
        "states  zero rows     acceptance length  first, second, ...  in vLLM",
    ]
    for kind in KINDS:
        files, measured, decoded = (
            known(folder, f"{stage}-{kind}")
            for stage in ("states", "evaluate", "decode")
        )
        zero = f"{files.get('zero_rows', '?')}/{files.get('rows', '?')}"
        rates = " ".join(f"{rate:.1%}" for rate in measured.get("rates", []))
        text.append(
            f"{kind:6}  {zero:12}  {length(measured):>17}  {rates:18}  "
            f"{length(decoded)}"
        )
    return "\n".join(text)


def length(found: dict[str, Any]) -> str:
    if found.get("failed"):
        return "failed"
    return f"{found['length']:.2f}" if "length" in found else "?"


if __name__ == "__main__":
    sys.exit(main())
