"""Acceptance length of a drafter trained on right states against one trained on what
stock vLLM delivers for the same hybrid model.

    python benchmarks/acceptance/acceptance.py --folder F \\
        --vllm-python P --train-python Q

Stages, each skipped where its result is in the folder already: toy, right, stock,
train, evaluate, decode. Runs in any Python with specshim; ``--vllm-python`` names the
one with vLLM (0.24.0 has the fault) and specshim, ``--train-python`` that with
speculators 0.9 and specshim. Nothing is fetched. On the CPU, where stock extraction
does not start, specshim's aids for the CPU are in place and its repair of the fault is
not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specshim.server_process import free_port, running, wait_until_healthy

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
PROMPT = 64  # tokens of held-out text; the target writes the rest
KINDS = ("right", "stock")


def main() -> None:
    options = arguments()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    for stage in (toy, right, stock, train, evaluate, decode):
        name = stage.__name__
        done = folder / f"{name}.json"
        if done.is_file() or (options.stages and name not in options.stages):
            continue
        start = time.monotonic()
        found = stage(options) or {}
        found["seconds"] = round(time.monotonic() - start)
        done.write_text(json.dumps(found, indent=2) + "\n")
        print(f"{name}: {json.dumps(found)}", flush=True)
    print(table(folder))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--vllm-python", default=sys.executable)
    parser.add_argument("--train-python", default=sys.executable)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--stages", nargs="*", help="only these")
    parser.add_argument("--minutes", type=float, default=3, help="to train the toy")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=192, help="of samples, in tokens")
    parser.add_argument("--samples", type=int, default=256, help="for the drafter")
    parser.add_argument("--prompts", type=int, default=32, help="to measure on")
    parser.add_argument("--epochs", type=int, default=4, help="of the drafter")
    parser.add_argument("--drafted", type=int, default=3, help="tokens per step")
    return parser.parse_args()


def layer_ids(options: argparse.Namespace) -> list[str]:
    """Of the drafter; the server appends the last layer."""
    return [str(i) for i in (2, options.layers // 2, options.layers - 2)]


def toy(options: argparse.Namespace) -> dict[str, Any]:
    done = run(
        [
            *(options.vllm_python, str(HERE / "toy.py"), str(options.folder / "toy")),
            *("--device", options.device, "--minutes", str(options.minutes)),
            *("--hidden", str(options.hidden), "--layers", str(options.layers)),
            *("--vocabulary", str(options.vocabulary), "--batch", str(options.batch)),
            *("--samples", str(options.samples), "--prompts", str(options.prompts)),
            *("--sample-length", str(options.length)),
        ],
        options.folder / "toy.log",
    )
    return {"said": done.splitlines()[-1]}


def right(options: argparse.Namespace) -> dict[str, Any]:
    """The target's own continuations of held-out prompts, and all states by the tap."""
    folder: Path = options.folder
    rows = [json.loads(line) for line in lines(folder / "toy" / "heldout.jsonl")]
    prompts = [row["input_ids"][:PROMPT] for row in rows]
    with serving(options, "right") as url:
        written = [
            {"input_ids": ids, "loss_mask": [1] * len(ids)}
            for ids in continued(url, prompts, options)
        ]
        for name, samples in (
            ("train", [json.loads(x) for x in lines(folder / "toy" / "train.jsonl")]),
            ("heldout", written),
        ):
            prepare(options, name, samples)
            generate(options, url, name, folder / "right" / name)
    return look(options, "right")


def stock(options: argparse.Namespace) -> dict[str, Any]:
    """The same samples' states as stock delivers them."""
    with serving(options, "stock") as url:
        generate(options, url, "train", options.folder / "stock" / "train")
    return look(options, "stock")


def train(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in KINDS:
        data = options.folder / "data" / "train"
        cache = data / "hidden_states"  # where the trainer looks for them
        cache.unlink(missing_ok=True)
        cache.symlink_to((options.folder / kind / "train").resolve())
        command = [
            *(options.train_python, str(EXAMPLES / "train.py")),
            *("--speculator-type", "eagle3"),
            *("--verifier-name-or-path", str(options.folder / "toy")),
            *("--data-path", str(data), "--on-missing", "raise"),
            *("--save-path", str(options.folder / f"drafter-{kind}")),
            *("--epochs", str(options.epochs), "--lr", "1e-3"),
            *("--checkpoint-freq", str(options.epochs)),
            *("--total-seq-len", str(4 * options.length), "--num-workers", "0"),
            *("--ttt-steps", str(options.drafted), "--log-freq", "20"),
            *("--target-layer-ids", *layer_ids(options)),
            *("--no-resume-from-checkpoint", "--hidden-states-dtype", "float32"),
            *("--draft-attn-impl", "eager", "--loss-implementation", "eager"),
        ]
        # Without specshim the guard would refuse what stock delivers.
        off = {"SPECSHIM": "0"} if kind == "stock" else {}
        run(command, options.folder / f"train-{kind}.log", **off)
        found[kind] = str(checkpoint(options, kind))
    return found


def evaluate(options: argparse.Namespace) -> dict[str, Any]:
    """Both drafters on right states of the target's own text."""
    found = {}
    for kind in KINDS:
        command = [
            *(options.train_python, str(HERE / "evaluate.py")),
            *(str(checkpoint(options, kind)), str(options.folder / "toy")),
            *(str(options.folder / "right" / "heldout"), "--written-from", str(PROMPT)),
            *("--drafted", str(options.drafted)),
        ]
        said = run(command, options.folder / f"evaluate-{kind}.log")
        found[kind] = json.loads(said.splitlines()[-1])
    return found


def decode(options: argparse.Namespace) -> dict[str, Any]:
    """Both drafters at work in vLLM, which counts what it accepts."""
    rows = [json.loads(x) for x in lines(options.folder / "toy" / "heldout.jsonl")]
    prompts = [row["input_ids"][:PROMPT] for row in rows]
    found: dict[str, Any] = {}
    for kind in KINDS:
        try:
            with serving(options, f"decode-{kind}") as url:
                continued(url, prompts, options)
                found[kind] = accepted(url)
        except Exception as error:
            # vLLM's CPU build may not decode speculatively; the log says why.
            found[kind] = {"failed": f"{type(error).__name__}: {error}"}
    return found


def checkpoint(options: argparse.Namespace, kind: str) -> Path:
    folder = options.folder / f"drafter-{kind}"
    numbers = [int(p.name) for p in folder.iterdir() if p.name.isdigit()]
    found: Path = folder / str(max(numbers))
    return found


@contextmanager
def serving(options: argparse.Namespace, kind: str) -> Iterator[str]:
    folder: Path = options.folder
    port = free_port()
    model = str(folder / "toy")
    length = max(512, 2 * options.length)
    common = ["--port", str(port), "--max-model-len", str(length), "--enforce-eager"]
    python, variables = options.vllm_python, {}
    if kind.startswith("decode"):
        drafter = checkpoint(options, kind.removeprefix("decode-"))
        speculation = {
            "method": "eagle3",
            "model": str(drafter),
            "num_speculative_tokens": options.drafted,
        }
        module = "vllm.entrypoints.openai.api_server"
        command = [python, "-m", module, "--model", model, *common]
        command += ["--speculative-config", json.dumps(speculation)]
    else:
        command = [python, "-m", "specshim.launch_vllm", model]
        command += ["--hidden-states-path", str(folder / "served")]
        command += ["--target-layer-ids", *layer_ids(options)]
        if kind == "stock" and options.device == "cuda":
            variables = {"SPECSHIM": "0"}
        elif kind == "stock":
            variables = {
                "SPECSHIM_ROUTE": "cache",
                "SPECSHIM_DISABLE": "hybrid-zero-states",
            }
        command += ["--", *common]
    log = folder / f"serve-{kind}.log"
    with running(command, log, environment(options, **variables)) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(process, url, 300)
        yield url


def environment(options: argparse.Namespace, **more: str) -> dict[str, str]:
    found = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **more}
    if options.device == "cpu":
        found.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    return found


def continued(
    url: str, prompts: Sequence[list[int]], options: argparse.Namespace
) -> list[list[int]]:
    """Prompts with what the target writes after them, greedily."""

    def one(prompt: list[int]) -> list[int]:
        body = {
            "model": str(options.folder / "toy"),
            "prompt": prompt,
            "max_tokens": options.length - PROMPT,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            return [*prompt, *json.load(answer)["choices"][0]["token_ids"]]

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, prompts))


def accepted(url: str) -> dict[str, float]:
    """vLLM's own count: accepted tokens per drafting step, and the target's own."""
    counts: dict[str, float] = {}
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            for name in ("num_drafts", "num_accepted_tokens"):
                if line.startswith(f"vllm:spec_decode_{name}_total"):
                    counts[name] = counts.get(name, 0) + float(line.split()[-1])
    return {
        "length": 1 + counts["num_accepted_tokens"] / counts["num_drafts"],
        "drafts": counts["num_drafts"],
    }


def prepare(options: argparse.Namespace, name: str, samples: list[Any]) -> None:
    """speculators' own prepare-data on rows that are tokens already."""
    source = options.folder / f"{name}.jsonl"
    source.write_text("".join(f"{json.dumps(sample)}\n" for sample in samples))
    command = [
        *speculators(options),
        *("prepare-data", "--model", str(options.folder / "toy")),
        *("--data", str(source), "--output", str(options.folder / "data" / name)),
        *("--seq-length", str(options.length), "--overwrite"),
        *("--num-preprocessing-workers", "1"),
    ]
    run(command, options.folder / f"prepare-{name}.log")


def generate(options: argparse.Namespace, url: str, name: str, output: Path) -> None:
    """speculators' own generation of the states of ``name``, as files."""
    command = [
        *speculators(options),
        *("generate-offline-data", "--model", str(options.folder / "toy")),
        *("--endpoint", f"{url}/v1", "--concurrency", "8"),
        *("--preprocessed-data", str(options.folder / "data" / name)),
        *("--output", str(output)),
    ]
    run(command, options.folder / f"generate-{output.parent.name}-{name}.log")


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
    folder = options.folder / kind / "train"
    command = [options.train_python, "-c", script, str(folder)]
    found: dict[str, Any] = json.loads(
        run(command, options.folder / f"look-{kind}.log").splitlines()[-1]
    )
    return found


def run(command: Sequence[str], log: Path, **more: str) -> str:
    """The standard output of ``command``; all of it is in ``log``.

    Raises:
        SystemExit: it failed; the end of the log is shown.
    """
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", **more}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    log.write_text(done.stdout + done.stderr)
    if done.returncode:
        end = "\n".join(log.read_text().splitlines()[-30:])
        raise SystemExit(f"{end}\n{' '.join(command[:6])} ... failed, see {log}")
    return done.stdout


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def table(folder: Path) -> str:
    """What there is so far, a line per drafter."""
    known = {
        stage: json.loads((folder / f"{stage}.json").read_text())
        for stage in ("right", "stock", "evaluate", "decode")
        if (folder / f"{stage}.json").is_file()
    }
    text = ["states  zero rows     acceptance length  first, second, ...  in vLLM"]
    for kind in KINDS:
        rows = known.get(kind, {})
        zero = f"{rows.get('zero_rows', '?')}/{rows.get('rows', '?')}"
        measured = known.get("evaluate", {}).get(kind, {})
        rates = " ".join(f"{rate:.1%}" for rate in measured.get("rates", []))
        length = f"{measured['length']:.2f}" if measured else "?"
        decoded = known.get("decode", {}).get(kind, {})
        vllm = f"{decoded['length']:.2f}" if "length" in decoded else "?"
        text.append(f"{kind:6}  {zero:12}  {length:>17}  {rates:18}  {vllm}")
    return "\n".join(text)


if __name__ == "__main__":
    main()
