"""Samples that leave the tap by hs_connectors' backends, read by its own transfers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from e2e_values import LAYER_IDS, assert_exact, random_prompts, reference
from mooncake_master import LOCAL, master, read_all, run_beside
from serving import Server, python_of, serve

ENVIRONMENT = "hs_connectors-0.9.0"  # beside vLLM 0.32.0
FORMS = ("hs_connectors-0.8.1", ENVIRONMENT)  # before and since the manifest
SIZES = ("--mooncake-global-segment-gib", "0.25", "--mooncake-local-buffer-gib", "0.25")


@dataclass(frozen=True)
class Served:
    server: Server
    python: str
    master: str
    prompts: list[list[int]]
    expected: list[Any]


def served(tiny: Any, folder: Path, backend: str) -> Iterator[Served]:
    """A launcher's server of a sliding-window hybrid with chunked prefill."""
    python, model = python_of(ENVIRONMENT), tiny("gemma4")
    prompts = random_prompts(12)
    with ExitStack() as stack:
        address, flags = "", ("--hidden-states-path", str(folder / "hs"))
        if backend == "mooncake":
            address = stack.enter_context(master(python, folder))
            flags = ("--mooncake-master", address, *SIZES)
        command = [
            *(python, "-m", "specshim.launch_vllm", str(model)),
            *("--hidden-states-backend", backend, *flags),
            *("--target-layer-ids", *map(str, LAYER_IDS[:-1])),
            *("--", "--dtype", "float32", "--max-model-len", "512", "--enforce-eager"),
            *("--max-num-batched-tokens", "64", "--max-num-seqs", "8"),
        ]
        server = stack.enter_context(serve(command, model, folder, **LOCAL))
        expected = reference(model, prompts)
        yield Served(server, python, address, prompts, expected)


@pytest.fixture(scope="module")
def fp8(tiny, tmp_path_factory) -> Iterator[Served]:
    yield from served(tiny, tmp_path_factory.mktemp("fp8"), "fp8")


@pytest.fixture(scope="module")
def mooncake(tiny, tmp_path_factory) -> Iterator[Served]:
    yield from served(tiny, tmp_path_factory.mktemp("mooncake"), "mooncake")


def assert_within_fp8(actual: Any, expected: Any) -> None:
    """Each value is within e4m3's rounding, its token's largest value being 448 steps.

    Half a step of 3 mantissa bits, half of the smallest step near zero, and what is
    lost by multiplying in bfloat16 (8 bits).
    """
    assert actual.shape == expected.shape
    largest = expected.abs().amax(dim=(1, 2), keepdim=True)
    bound = expected.abs() * (2**-4 + 2**-7) + largest / 448 * 2**-9
    assert bool(((actual.float() - expected).abs() <= bound).all())
    assert float((actual.float() - expected).norm() / expected.norm()) < 0.04


def test_the_fp8_transfer_reads_what_the_tap_wrote(fp8):
    transfer = pytest.importorskip("hs_connectors").FP8Transfer(fp8.server.storage)
    answers = fp8.server.complete_all(fp8.prompts, 8)
    for answer, prompt, expected in zip(
        answers, fp8.prompts, fp8.expected, strict=True
    ):
        loaded = transfer.get_generated(answer)
        transfer.delete(answer["hidden_states_path"])
        assert sorted(loaded) == ["hidden_states", "token_ids"]
        assert loaded["token_ids"].tolist() == prompt
        assert_within_fp8(loaded["hidden_states"], expected)
    assert fp8.server.leftovers() == []


def test_fp8_with_output_tokens_and_its_header(fp8):
    from safetensors import safe_open

    answer = fp8.server.complete(
        fp8.prompts[0],
        max_tokens=6,
        ignore_eos=True,
        return_token_ids=True,
        kv_transfer_params={"include_output_tokens": True},
    )
    ids = fp8.prompts[0] + answer["answer"]["choices"][0]["token_ids"][:-1]
    transfer = pytest.importorskip("hs_connectors").FP8Transfer(fp8.server.storage)
    loaded = transfer.get_generated(answer)
    assert loaded["token_ids"].tolist() == ids
    (expected,) = reference(fp8.server.model, [ids])
    assert_within_fp8(loaded["hidden_states"], expected)
    with safe_open(answer["hidden_states_path"], "pt") as file:
        metadata = file.metadata()
        stored = file.get_slice("hidden_states").get_dtype()
        scales = file.get_tensor("hidden_states_scales")
    assert stored == "F8_E4M3"
    assert scales.shape == (len(ids), len(LAYER_IDS), 1)  # of the patch fp8-precision
    assert json.loads(metadata["layer_ids"]) == list(LAYER_IDS)
    os.unlink(answer["hidden_states_path"])


def test_the_mooncake_transfer_reads_what_the_tap_stored(mooncake, tmp_path):
    answers = mooncake.server.complete_all(mooncake.prompts, 8)
    answers.append(
        mooncake.server.complete(
            mooncake.prompts[0],
            max_tokens=6,
            ignore_eos=True,
            return_token_ids=True,
            kv_transfer_params={"include_output_tokens": True},
        )
    )
    output = answers[-1]["answer"]["choices"][0]["token_ids"][:-1]
    prompts = [*mooncake.prompts, mooncake.prompts[0] + output]
    expected = [*mooncake.expected, *reference(mooncake.server.model, prompts[-1:])]
    assert len({answer["handle"] for answer in answers}) == len(answers)
    samples = read_all(mooncake.python, mooncake.master, answers, tmp_path)
    for sample, prompt, states in zip(samples, prompts, expected, strict=True):
        assert sample["token_ids"].tolist() == prompt
        assert_exact(sample["hidden_states"], states)
    assert answers[-1]["metadata"]["extract_mode"] == "all"


def test_a_path_makes_no_sense_to_mooncake(mooncake):
    answer = mooncake.server.complete(
        mooncake.prompts[0], kv_transfer_params={"hidden_states_path": "/tmp/x"}
    )
    assert "samples go to Mooncake" in answer["hidden_states_error"]
    assert "handle" not in answer


@pytest.mark.parametrize("script", ["sink_and_store.py", "worker_and_store.py"])
@pytest.mark.parametrize("name", FORMS)
def test_on_a_real_store(name, script, tmp_path):
    python = python_of(name)
    with master(python, tmp_path) as address:
        run_beside(python, script, {"master": address})
