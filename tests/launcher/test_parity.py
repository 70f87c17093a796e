"""The cache route gives the command of speculators' script, plus what the plan adds."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from launcher_values import launch

RECORDED = json.loads(
    (Path(__file__).parents[1] / "data" / "upstream_argv.json").read_text()
)
ENTRIES = [
    pytest.param(script, entry, id=f"{script}-{name}")
    for script, entries in RECORDED.items()
    for name, entry in entries.items()
]
NO_CHUNKS, NO_PREFIXES = "--no-enable-chunked-prefill", "--no-enable-prefix-caching"
ADDED = {
    "0.17.1": [NO_CHUNKS],
    "0.20.1": [NO_CHUNKS],
    "0.22.1": [NO_CHUNKS, NO_PREFIXES],
    "0.24.0": [],
    "0.32.0": [],
}


def upstream_command(entry: dict[str, Any]) -> list[str]:
    """The argument list behind a printed command, whose JSON is not quoted."""
    decoder, rest, command = json.JSONDecoder(), entry["printed_command"], []
    while rest:
        if rest.startswith("{"):
            _, end = decoder.raw_decode(rest)
        else:
            end = rest.find(" ") if " " in rest else len(rest)
        command.append(rest[:end])
        rest = rest[end:].lstrip()
    return command


@pytest.mark.parametrize(("script", "entry"), ENTRIES)
@pytest.mark.parametrize("vllm", ADDED)
def test_cache_route(script: str, entry: dict[str, Any], vllm: str) -> None:
    upstream = upstream_command(entry)
    # The scripts of 0.6 and 0.7 add this flag for every vLLM; the plan adds it for
    # those that need it.
    if NO_CHUNKS not in entry["argv"] and NO_CHUNKS in upstream:
        assert script in ("0.6.0", "0.7.0")
        upstream.remove(NO_CHUNKS)
    added = [flag for flag in ADDED[vllm] if flag not in upstream]

    made = launch("--specshim-route", "cache", *entry["argv"], vllm=vllm)
    assert shlex.split(shlex.join(made.command)) == [*upstream, *added]
    assert made.variables["SPECSHIM_ROUTE"] == "cache"


@pytest.mark.parametrize(("script", "entry"), ENTRIES)
def test_switched_off(script: str, entry: dict[str, Any]) -> None:
    upstream = upstream_command(entry)
    if NO_CHUNKS not in entry["argv"] and script in ("0.6.0", "0.7.0"):
        upstream.remove(NO_CHUNKS)
    made = launch(*entry["argv"], variables={"SPECSHIM": "0"})
    assert list(made.command) == upstream
    assert made.variables == {}


@pytest.mark.parametrize(("script", "entry"), ENTRIES)
def test_tap_route_keeps_the_users_arguments(
    script: str, entry: dict[str, Any]
) -> None:
    upstream = upstream_command(entry)
    made = list(launch(*entry["argv"]).command)
    assert made[:5] == upstream[:5]
    given = [token for token in upstream[9:] if token in entry["argv"]]
    assert [token for token in made[5:] if token in given] == given
    kv, additional = (json.loads(made[made.index(flag) + 1]) for flag in made[5:9:2])
    ids = json.loads(upstream[6])["draft_model_config"]["hf_config"]
    assert additional["specshim"]["layer_ids"] == list(*ids.values())
    assert (
        kv["kv_connector_extra_config"]
        == json.loads(upstream[8])["kv_connector_extra_config"]
    )
