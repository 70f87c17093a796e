"""The plugin in real vLLM processes: twice in each, spawned and forked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from compat import each_run

pytestmark = pytest.mark.envs

SCRIPTS = Path(__file__).parent / "scripts"
RELEASES = each_run("vllm")
SECONDS = 0.3  # of CPU time that the plugin may add to a process


@pytest.mark.parametrize("release", RELEASES)
def test_plugin_twice_in_every_process(environment: Callable, release: str) -> None:
    done = environment(f"vllm-{release}").run(str(SCRIPTS / "plugin_everywhere.py"))
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert set(report) == {"here", "fork", "fork, loaded again", "spawn"}
    for found in report.values():
        assert found["depth"] == 1
        assert found["state"] == "applied"
        assert found["failures"] == {}
        assert found["seconds"] < SECONDS


@pytest.mark.parametrize(
    ("release", "started_by"),
    [
        ("vllm-0.20.1", {}),
        ("vllm-0.32.0", {}),
        # What a process that serves on the cache route leaves to those it starts.
        ("vllm-0.32.0", {"SPECSHIM_SERVING": "cache:1:0"}),
    ],
)
def test_server_without_extraction_is_left_alone(
    environment: Callable, release: str, started_by: dict[str, str]
) -> None:
    script = str(SCRIPTS / "untouched.py")
    done = environment(release).run(script, variables=started_by)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {"same": True, "said": [], "patched": []}


def test_a_process_that_looks_a_model_up_does_not_report(
    environment: Callable, tmp_path: Path
) -> None:
    look_up = "from vllm.model_executor.models.registry import _run_in_subprocess as r"
    serving = {"SPECSHIM_SERVING": "cache:1:0", "SPECSHIM_STATE_DIR": str(tmp_path)}
    watch = f"{look_up}\nimport sys\nassert 'specshim' in r(lambda: [*sys.modules])"
    done = environment("vllm-0.32.0").run("-c", watch, variables=serving)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("release", RELEASES)
def test_stock_request_is_rerouted_and_said_once(
    environment: Callable, release: str
) -> None:
    done = environment(f"vllm-{release}").run(str(SCRIPTS / "rerouted.py"))
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["module"] == "specshim.tap.connector"
    assert report["role"] == "kv_producer"
    assert not report["speculative"]
    assert report["arguments kept"]
    for speaker in ("alone", "parent"):
        (line,) = report[speaker]
        assert line.startswith("specshim rerouted hidden-state extraction to the tap")
    assert report["API server"] == []


@pytest.mark.parametrize("route", ["auto", "cache"])
def test_the_backends_of_hs_connectors(environment: Callable, route: str) -> None:
    script = str(SCRIPTS / "rerouted_backend.py")
    variables = {"SPECSHIM_ROUTE": route, "MOONCAKE_LOCAL_HOSTNAME": "127.0.0.1"}
    done = environment("hs_connectors-0.9.0").run(script, variables=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    kept = ["hs_connectors.fp8_hidden_states_connector", {}]
    expected = kept if route == "cache" else ["specshim.tap.connector", {}]
    if route == "auto":
        expected[1]["hidden_states_backend"] = "fp8"
    expected[1]["shared_storage_path"] = "/data"
    assert report["fp8"] == expected
    # No master there, or, without libibverbs, no Mooncake: said before the engine is.
    assert report["mooncake"].startswith("specshim: ")
    assert "No Mooncake master" in report["mooncake"] or "load" in report["mooncake"]


def test_strict_stops_vllm_where_a_hook_is_refused(environment: Callable) -> None:
    code = (
        "from vllm.engine.arg_utils import EngineArgs\n"
        "EngineArgs.create_engine_config = lambda self: None\n"
        "import vllm.plugins; vllm.plugins.load_general_plugins(); print('went on')"
    )
    strict = {"SPECSHIM_STRICT": "1"}
    done = environment("vllm-0.32.0").run("-c", code, variables=strict)
    assert (done.returncode, done.stdout) == (1, "")
    assert "PatchRefused" in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [({"SPECSHIM_ROUTE": "scenic"}, "The route 'scenic' is unknown")],
)
def test_refusal_reaches_the_user(
    environment: Callable, variables: dict[str, str], sentence: str
) -> None:
    script = str(SCRIPTS / "rerouted.py")
    done = environment("vllm-0.32.0").run(script, variables=variables)
    assert done.returncode == 1
    assert sentence in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"SPECSHIM": "0"}, "specshim's plugin was not loaded in it; install specshim"),
        (
            {"SPECSHIM_DISABLE": "tap-loaded-model"},
            "its hook tap-loaded-model is switched off: SPECSHIM_DISABLE=tap-loaded-",
        ),
    ],
)
def test_an_untapped_worker_says_why(
    environment: Callable, variables: dict[str, str], reason: str
) -> None:
    code = (
        "import vllm.v1.worker.gpu_worker, specshim.tap.connector as connector\n"
        "print(connector._why())"
    )
    said = environment("vllm-0.32.0").evaluate(code, variables)
    assert said.splitlines()[-1].startswith(reason)


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 128,
}
SPLITTING = (
    {"enable_dbo": True},
    {"ubatch_size": 2},
    {"prefill_context_parallel_size": 2},
    {"kv_sharing_fast_prefill": True},
)
PASSES = (  # 0.32 has them no more
    {"compilation_config": {"pass_config": {"enable_sp": True}}},
    {"compilation_config": {"pass_config": {"fuse_gemm_comms": True}}},
)


@pytest.mark.parametrize(
    ("release", "options"),
    [("vllm-0.20.1", (*SPLITTING, *PASSES)), ("vllm-0.32.0", SPLITTING)],
    ids=["0.20.1", "0.32.0"],
)
def test_what_splits_rows_is_refused_before_a_model_is_loaded(
    environment: Callable, release: str, options: tuple, tmp_path: Path
) -> None:
    """There are no weights here."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    tap = {"kv_connector": "TapConnector", "kv_role": "kv_producer"}
    base = {
        "model": str(tmp_path),
        "skip_tokenizer_init": True,
        "additional_config": {"specshim": {"layer_ids": [2]}},
        "kv_transfer_config": {
            **tap,
            "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "hs")},
        },
    }
    job = json.dumps({"base": base, "options": options})
    done = environment(release).run(str(SCRIPTS / "refused_options.py"), job)
    said = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert len(said) == len(options), done.stderr[-3000:]
    for line in said:
        sentence = json.loads(line.removeprefix("SAID "))
        assert sentence.startswith("specshim: The tap route cannot record layers under")
        assert sentence.count(". ") == 0
