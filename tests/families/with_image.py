"""Chats with an image, over HTTP: every row, of text or image, against transformers."""

from __future__ import annotations

import base64
import io
import json
import os
import random
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from family_runs import Run

LAYERS = 8
START_SECONDS = 400  # three processes import vLLM, on a machine that may be busy


def verdict(seen: Any) -> str:
    """As specshim verify says it; in float32 a warning is more than rounding."""
    if seen.status == "warning":
        return "near" if seen.dtype == "float32" else "right"
    return str(seen.status)


def numbers(seen: Any) -> dict[str, Any]:
    """The worst prompt in the worst layer, and in half precision what that costs.

    ``together`` is the worst layer over all rows, ``rounding`` what the dtype alone
    moves transformers' states by, ``loose_rows`` single rows that are further off, of
    which the dtype alone gives as many (experts are chosen anew).
    """

    def two_digits(value: float) -> float:
        return float(f"{value:.2g}")

    told: dict[str, Any] = {"worst": two_digits(max(x.worst for x in seen.layers))}
    if seen.dtype != "float32":
        told["together"] = two_digits(max(x.total for x in seen.layers))
        told["rounding"] = two_digits(max(x.limits.measured for x in seen.layers))
        if loose := max(x.bad_rows for x in seen.layers):
            told["loose_rows"] = loose
    return told


def picture(seed: int, width: int, height: int) -> Any:
    """Random pixels."""
    from PIL import Image

    source = random.Random(seed)
    return Image.frombytes("RGB", (width, height), source.randbytes(3 * width * height))


def chat(words: list[str], image: Any) -> tuple[list[dict], list[dict]]:
    """One message, as the server's clients and as transformers' processors spell it."""
    first, second = ({"type": "text", "text": text} for text in words)
    file = io.BytesIO()
    image.save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    sent = [first, {"type": "image_url", "image_url": {"url": url}}, second]
    asked = [first, {"type": "image", "image": image}, second]
    return [{"role": "user", "content": sent}], [{"role": "user", "content": asked}]


def pictured(run: Run, folder: Path) -> dict[str, Any]:
    """Start the server, send chats, compare every row and layer."""
    from transformers import AutoProcessor

    from specshim.reference import compute_reference
    from specshim.server_process import free_port, running, wait_until_healthy
    from specshim.tiny import ensure_tiny_model
    from specshim.verification.collect import Sample
    from specshim.verification.compare import compare

    dtype = run.served_dtype
    model = ensure_tiny_model(run.model, folder / "models")
    processor = AutoProcessor.from_pretrained(model)
    chats = [
        chat(["w3 w4 w5 w6", "w7 w8 w9"], picture(1, 96, 160)),
        chat(["w10", " ".join(f"w{i}" for i in range(20, 70))], picture(2, 256, 64)),
        chat(["w11 w12", "w13"], picture(3, 130, 70)),
    ]
    prompts, extras = [], []
    for _, messages in chats:
        inputs = dict(
            processor.apply_chat_template(
                messages,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
            )
        )
        prompts.append(inputs.pop("input_ids")[0].tolist())
        inputs.pop("attention_mask", None)
        extras.append(inputs)
    exact = compute_reference(str(model), prompts, "float32", extras=extras)
    rounded = None
    if dtype != "float32":
        rounded = compute_reference(str(model), prompts, dtype, extras=extras)

    port = free_port()
    command = [
        *(sys.executable, "-m", "specshim.launch_vllm", str(model)),
        *("--hidden-states-path", str(folder / "states" / f"{run.model}-image")),
        *("--target-layer-ids", *map(str, range(LAYERS))),
        *("--", "--dtype", dtype, "--max-model-len", "512", "--port", str(port)),
        *("--max-num-batched-tokens", "128", "--max-num-seqs", "4"),
        *("--enforce-eager", "--limit-mm-per-prompt", '{"image": 1, "video": 0}'),
    ]
    url, log = f"http://127.0.0.1:{port}", folder / f"{run.model}-server.log"
    samples = []
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "VLLM_ENABLE_V1_MULTIPROCESSING"
    }
    with running(command, log, environment) as process:
        wait_until_healthy(process, url, START_SECONDS)
        for index, (messages, _) in enumerate(chats):
            body = {
                "model": str(model),
                "messages": messages,
                "max_tokens": 1,
                "temperature": 0,
            }
            request = urllib.request.Request(
                f"{url}/v1/chat/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=120) as response:
                answer = json.load(response)["kv_transfer_params"]
            loaded = wait_for(answer)
            samples.append(
                Sample(
                    index=index,
                    prompt=tuple(prompts[index]),
                    token_ids=tuple(loaded["token_ids"].tolist()),
                    states=loaded["hidden_states"],
                    dtype=dtype,
                )
            )
    seen = compare(samples, list(range(LAYERS + 1)), exact, rounded)
    print(seen)
    told: dict[str, Any] = {"result": verdict(seen), "layers": LAYERS + 1}
    if seen.layers:
        told |= numbers(seen)
    if told["result"] != "right":
        told["error"] = "; ".join(f"{f.kind}: {f.text}" for f in seen.findings[:2])
    return told


def wait_for(answer: dict[str, Any]) -> dict[str, Any]:
    """The file that the answer names, once it is there."""
    from safetensors.torch import load_file

    path = Path(answer["hidden_states_path"])
    deadline = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return load_file(path)
