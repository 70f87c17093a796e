"""Arbitrary command lines and option values: no crash, no token lost, none doubled."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from plan_values import DENSE, GDN, LLAMA4, SLIDING, apply, environment, stock_options

from specshim._argv_options import OPTIONS, find_option
from specshim.argv import read_argv, rewrite_argv
from specshim.planning import LaunchPlan, Request, plan

FLAGS = [
    spelling
    for option in OPTIONS
    for spelling in (option.flag, option.short, "--no-" + option.flag[2:])
    if spelling
]
VALUES = [
    "{}",
    '{"kv_role": "kv_both"}',
    '{"kv_connector_extra_config": {"shared_storage_path": ["a"], "sync": {"b": 1}}}',
    '{"kv_connector_extra_config": "{}", "kv_connector": null}',
    '{"method": "extract_hidden_states", "draft_model_config": {"hf_config": []}}',
    '{"a":' * 3000,
    "\udcff",
    "nan",
    "[]",
    "9" * 5000,
    '{"specshim": 1}',
    "1",
    "2",
    "None",
    "x",
    "{",
    "",
]
KNOWN = st.builds(
    lambda flag, dash, end: flag.replace("-", dash).replace("__", "--", 1) + end,
    # abbreviated, too: argparse takes what is not ambiguous
    st.sampled_from(FLAGS).flatmap(
        lambda flag: st.integers(3, len(flag) + 9).map(lambda end: flag[:end])
    ),
    st.sampled_from("-_"),
    st.sampled_from(["", "", "", "=1", "={}", ".a", ".a.b=2", ".a+", "=", "."]),
)
TOKENS = st.lists(
    st.one_of(
        KNOWN, st.sampled_from(VALUES), st.text(max_size=8).map("--port ".__add__)
    )
    | st.text(max_size=12)
)
VLLM = st.sampled_from(["0.17.1", "0.21.0", "0.22.1", "0.24.0", "0.32.0", "dev"])
MODELS = st.sampled_from([DENSE, SLIDING, GDN, LLAMA4])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["specshim", "layer_ids", "tap", "kv_connector", "method"])
            | st.text(max_size=8),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


def flag_field(token: str) -> str | None:
    found = find_option(token.partition("=")[0].partition(".")[0])
    return found[0].field if found else None


@settings(deadline=None)
@given(TOKENS, MODELS, VLLM, st.sampled_from(["auto", "cache"]))
def test_a_launch_keeps_every_token_of_the_user(
    tokens: list[str], model: Any, vllm: str, route: str
) -> None:
    tokens = [token for token in tokens if token != "--config"]
    reading = read_argv(tokens)
    request = Request(source="launcher", route=route, options=reading.options)
    decision = plan(environment(vllm), model, request)
    rewriting = rewrite_argv(reading, decision.changes)
    assert_lines(*reading.problems, *reading.notes, *rewriting.problems)
    assert_lines(*sentences(decision))
    result = rewriting.tokens

    changes = {change.option for change in decision.changes}
    replaced = {
        index
        for option in changes
        for start, stop in reading.spans.get(option, ())
        for index in range(start, stop)
    }
    kept = [token for index, token in enumerate(tokens) if index not in replaced]
    assert is_subsequence(kept, list(result))
    if not reading.problems:
        fields = [flag_field(token) for token in result if token.startswith("-")]
        assert all(fields.count(option) <= 1 for option in changes)


def sentences(decision: LaunchPlan) -> tuple[str, ...]:
    whys = tuple(change.why for change in decision.changes)
    return (decision.reason, decision.refusal or "-", *decision.warnings, *whys)


def assert_lines(*said: str) -> None:
    assert all(sentence.isprintable() for sentence in said)


def is_subsequence(short: list[str], long: list[str]) -> bool:
    rest = iter(long)
    return all(token in rest for token in short)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from([option.field for option in OPTIONS]), JSON),
    MODELS,
    VLLM,
    st.sampled_from(["launcher", "engine_args"]),
    st.sampled_from(["auto", "tap", "cache", "none", ""]),
    st.integers(0, 8) | JSON,
)
def test_plan_never_raises_and_is_carried_out_once(
    options: dict[str, Any], model: Any, vllm: str, source: str, route: str, ids: Any
) -> None:
    if source == "engine_args":
        options = {**options, **stock_options([ids])}
    decision = plan(
        environment(vllm), model, Request(source=source, route=route, options=options)
    )
    assert decision.route in ("tap", "cache", "none")
    assert_lines(*sentences(decision))
    if decision.refusal is None:
        again = Request(source=source, route=route, options=apply(options, decision))
        assert plan(environment(vllm), model, again).changes == ()
    else:
        assert decision.changes == ()
