"""Whatever file --config names, it is read as YAML, or refused in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_values import DENSE, GDN, environment

from specshim._argv_options import OPTIONS
from specshim.argv import read_argv, rewrite_argv
from specshim.planning import Request, plan

BEFORE = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
KEYS = st.sampled_from(
    [o.field for o in OPTIONS]
    + [o.flag[2:] for o in OPTIONS]
    + ["port", "config", "kv_transfer_config.kv_role", "no-enable-prefix-caching", ""]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.dates()
    | st.binary(max_size=4)
    | st.sampled_from(["{}", '{"kv_connector": 1}', "None"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.integers() | st.dates(), inner)
    ),
    max_leaves=6,
)
WRITTEN = st.dictionaries(KEYS | st.text(max_size=6) | st.integers(), VALUES).map(
    lambda content: yaml.safe_dump(content, allow_unicode=True).encode(
        "utf-8", "surrogatepass"
    )
)
ODD = st.sampled_from(
    [
        b"a: &x {b: *x}",  # holds itself
        b"kv_transfer_config: &x {b: *x}",
        b"kv_transfer_config: {2020-01-01: 1}",
        b"? {a: 1}\n: 2",
        b"? [a]\n: 2",
        b"a: !!python/object:os.system x",
        b"a: 2020-99-99",
        b"a: 9999999999999-01-01",
        b"- 1\n- 2",
        b"port: [",
        b"[" * 5000,
        b"a: " * 3000,
        b"\xff\xfe",
        b"\xff\xfea\0:\0 \0001\0",
        b"a: \x00",
        b"%YAML 9.9\n---\na: 1",
        b"--- a: 1\n--- b: 2",
        b"",
        b"? '\n\n  '\n: 2000-01-01: null",  # a key of a line end
        b"port: 0o777777777777777777777777777\nseed: .inf",
    ]
)


def read_with(tmp_path: Path, content: bytes, *more: str):
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    return read_argv(["--config", str(path), *more])


@BEFORE
@given(WRITTEN | ODD | st.binary(max_size=40), st.booleans())
def test_any_file(tmp_path, content, hybrid):
    reading = read_with(tmp_path, content, "--port", "1")
    for sentence in (*reading.problems, *reading.notes):
        assert sentence.endswith(".") and sentence.isprintable()
    request = Request(source="launcher", options=reading.options)
    decision = plan(environment("0.32.0"), GDN if hybrid else DENSE, request)
    assert (decision.refusal or "-").isprintable()
    tokens = rewrite_argv(reading, decision.changes).tokens
    assert [t for t in tokens if t in ("--config", "--port")] == ["--config", "--port"]


@pytest.mark.parametrize("name", ["a\0b.yaml", "x" * 300 + ".yaml", "\udcff.yaml", ""])
def test_names_that_no_file_has(tmp_path, name):
    problems = read_argv(["--config", f"{tmp_path}/{name}"]).problems
    assert len(problems) == 1 and problems[0].endswith(".")


def test_a_fifo_does_not_have_us_wait(tmp_path):
    os.mkfifo(tmp_path / "c.yaml")
    problems = read_argv(["--config", str(tmp_path / "c.yaml")]).problems
    assert problems == (f"--config {tmp_path}/c.yaml is not a file.",)
