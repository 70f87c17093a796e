"""vLLM's command line, read and rewritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specshim.argv import read_argv, rewrite_argv
from specshim.planning import REMOVE, Change


def words(line: str) -> list[str]:
    return line.split()


def rewritten(tokens: list[str], **changes: Any) -> list[str]:
    made = [Change(option, value, "why") for option, value in changes.items()]
    result = rewrite_argv(read_argv(tokens), made)
    assert not result.problems
    return list(result.tokens)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('--kv-transfer-config {"a":1}', {"kv_transfer_config": {"a": 1}}),
        ('--kv_transfer_config {"a":1}', {"kv_transfer_config": {"a": 1}}),
        ('--kv_transfer-config={"a":1}', {"kv_transfer_config": {"a": 1}}),
        ('--kv-transfer {"a":1}', {"kv_transfer_config": {"a": 1}}),
        ('-sc {"a":1}', {"speculative_config": {"a": 1}}),
        ("--speculative-config None", {"speculative_config": None}),
        (
            "-pp 2 -pcp=3",
            {"pipeline_parallel_size": 2, "prefill_context_parallel_size": 3},
        ),
        ("--pipeline_parallel_size two", {"pipeline_parallel_size": "two"}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--no_enable_prefix_cac", {"enable_prefix_caching": False}),
        (
            "--no-disable-hybrid-kv-cache-manager --enable-dbo",
            {"disable_hybrid_kv_cache_manager": False, "enable_dbo": True},
        ),
        (
            "-cc.pass_config.enable_sp true",
            {"compilation_config": {"pass_config": {"enable_sp": True}}},
        ),
        ("--additional-config.x.y=1", {"additional_config": {"x": {"y": 1}}}),
        (
            "--additional_config.a_b x --additional-config.c+ 1,2 "
            "--additional-config.c+=3",
            {"additional_config": {"a_b": "x", "c": ["1", "2", "3"]}},
        ),
        (
            "--kv-transfer-config.kv_role kv_both",
            {"kv_transfer_config": {"kv_role": "kv_both"}},
        ),
        ('--additional-config {"a.b":"x.y"}', {"additional_config": {"a.b": "x.y"}}),
        ("--port 8001 -dp 2 -tp 4 --seed -1", {}),
        (
            "--enable-prefix-caching --no-enable-prefix-caching",
            {"enable_prefix_caching": False},
        ),
        ("", {}),
    ],
)
def test_spellings(line: str, expected: dict[str, Any]) -> None:
    reading = read_argv(words(line))
    assert reading.options == expected
    assert reading.problems == ()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--kv-transfer-config {a:1}", "--kv-transfer-config is not valid JSON: {a:1}"),
        ("--additional-config", "--additional-config has no value"),
        ("--additional-config --port 1", "--additional-config has no value"),
        ("--additional-config.a", "--additional-config.a has no value"),
        ('-sc {"a":1} --speculative-config.b 1', "write it in one form"),
        ("--enable-dbo=1", "--enable-dbo takes no value (--enable-dbo=1); write"),
        ("-pp.a 1", "--pipeline-parallel-size takes no keys"),
        ("--config a.yaml --config b.yaml", "--config is given more than once"),
        ("--config", "--config has no file name"),
        ("--config none.json", "is not a .yaml file"),
        ("--config none.yaml", "--config none.yaml is not a file"),
    ],
)
def test_problems(line: str, sentence: str) -> None:
    problems = " ".join(read_argv(words(line)).problems)
    assert sentence in problems
    assert problems.endswith(".")


def test_repeated_options_are_noted() -> None:
    reading = read_argv(
        words('--additional-config {"a":1} --additional-config {"b":1}')
    )
    assert reading.options == {"additional_config": {"b": 1}}
    assert "is given 2 times; vLLM takes the last" in reading.notes[0]
    assert "with a space" in read_argv(["--config=a.yaml"]).notes[0]


def test_values_of_a_config_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "port: 8001\nenable-prefix-caching: true\nenable_dbo: false\n"
        "additional-config:\n  a: {b: 1}\nspeculative_config.method: eagle3\n"
        "allowed-origins: [a, b]\n"
    )
    tokens = ["--config", str(file), "--no-enable-prefix-caching"]
    reading = read_argv(tokens)
    assert reading.options == {
        "enable_prefix_caching": False,
        "enable_dbo": False,
        "additional_config": {"a": {"b": 1}},
        "speculative_config": {"method": "eagle3"},
    }
    assert "enable_dbo" not in read_argv(tokens, ignore_false_in_file=True).options

    made = [Change("additional_config", {"a": {"b": 1}, "c": 2}, "why")]
    expected = ("--additional-config", '{"a": {"b": 1}, "c": 2}', *tokens)
    assert rewrite_argv(reading, made).tokens == expected
    gone = rewrite_argv(reading, [Change("speculative_config", REMOVE, "why")])
    assert "speculative_config in the --config file has to go" in gone.problems[0]


def test_dotted_keys_replace_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("additional-config: {a: 1}\nkv_transfer_config.kv_role: x\n")
    reading = read_argv(["--config", str(file), "--additional-config.b", "2"])
    assert reading.options["additional_config"] == {"b": 2}
    assert "is replaced, not merged" in reading.notes[0]
    assert reading.problems == ()
    both = read_argv(["--config", str(file), "--kv-transfer-config", "{}"])
    assert "write it in one form" in both.problems[0]


@pytest.mark.parametrize("content", ["- a", "a: [", "\x00", "3"])
def test_config_files_that_hold_no_options(tmp_path: Path, content: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(content)
    assert read_argv(["--config", str(file)]).problems


def test_new_values_stand_in_front_and_new_flags_at_the_end() -> None:
    line = words("--port 8001 --served-model-name a b")
    assert rewritten(
        line, kv_transfer_config={"a": 1}, enable_prefix_caching=False
    ) == [
        "--kv_transfer_config",
        '{"a": 1}',
        *line,
        "--no-enable-prefix-caching",
    ]


def test_every_form_of_an_option_is_replaced_once_in_its_place() -> None:
    line = words('--a 1 --additional_config.x 1 --b --additional-config.y=2 "--c d"')
    assert rewritten(line, additional_config={"x": 1}) == [
        *words("--a 1 --additional-config"),
        '{"x": 1}',
        *words('--b "--c d"'),
    ]


def test_removal() -> None:
    line = words("--a 1 -sc {} --b --speculative_config={} --spec-method=x --c")
    assert rewritten(line, speculative_config=REMOVE, spec_method=REMOVE) == words(
        "--a 1 --b --c"
    )


def test_json_values_survive() -> None:
    value = {"path": '/data/ü "q"', "n": [1, None, True]}
    tokens = rewritten([], kv_transfer_config=value)
    assert json.loads(tokens[1]) == value
    assert read_argv(tokens).options == {"kv_transfer_config": value}


def test_an_option_whose_value_may_be_left_out() -> None:
    assert read_argv(words("--hf-token --port 1")).options == {"hf_token": True}
    assert read_argv(["--hf-token"]).options == {"hf_token": True}
    assert read_argv(words("--hf_token x")).options == {"hf_token": "x"}
    assert read_argv(words("--hf-token=x")).options == {"hf_token": "x"}


def test_hf_overrides_are_json() -> None:
    line = ["--hf-overrides", '{"num_hidden_layers": 4}']
    assert read_argv(line).options == {"hf_overrides": {"num_hidden_layers": 4}}
