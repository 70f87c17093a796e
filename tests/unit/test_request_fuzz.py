"""Whatever a request says, there is a file below the storage path or one sentence."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest

pytest.importorskip("torch")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specshim.tap.places import FilePlaces, custom_path, file_name, shown
from specshim.tap.samples import Samples

TEXT = st.text(st.characters(codec=None), max_size=40) | st.sampled_from(
    ["..", ".", "/", "\0", "\ud800", "a\udcffb", "x" * 5000, "a/" * 2000, "ü" * 200]
)
HEADERS = st.builds(
    "".join,
    st.lists(
        TEXT
        | st.sampled_from(
            ["cmpl-", "chatcmpl-", "-0", "-1", "0_", "1_", "-deadbeef", "9" * 6000]
        ),
        max_size=6,
    ),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
    ),
    max_leaves=8,
)
PARAMETERS = JSON | st.dictionaries(
    st.sampled_from(
        """hidden_states_path include_output_tokens do_remote_prefill do_remote_decode
        remote_block_ids remote_engine_id prompt_token_ids""".split()
    ),
    JSON,
    max_size=4,
)


@pytest.fixture(scope="module")
def storage(tmp_path_factory) -> str:
    """With a folder, and links in and out, in it."""
    root = tmp_path_factory.mktemp("hs")
    (root / "folder").mkdir()
    (root / "out").symlink_to(root.parent)
    (root / "in").symlink_to(root / "folder")
    return str(root)


def is_sentence(text: str) -> bool:
    return text.isascii() and text.isprintable() and 0 < len(text) < 500


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HEADERS, PARAMETERS, st.booleans(), st.booleans(), st.booleans())
def test_a_request_gets_a_path_or_a_sentence(
    storage, caplog, request_id: str, parameters: Any, custom, sync, streamed
):
    caplog.set_level(logging.WARNING)
    caplog.clear()
    samples = Samples(FilePlaces(storage, custom), sync)
    samples.open(request_id, [1, 2], 2, parameters, streamed=streamed)
    samples.schedule(request_id, 0, 2)
    opened = samples.take_step().opened
    answer = samples.finish(request_id, [1, 2, 3], aborted=False)
    for sample in opened.values():
        path = os.path.realpath(sample.path)
        assert path.startswith(f"{storage}/") and path != f"{storage}/folder"
        assert os.path.realpath(f"{sample.path}.lock") == f"{path}.lock"
        assert answer == {"hidden_states_path": sample.path}
        assert custom or os.path.dirname(sample.path) == storage
    if not opened and answer is not None:
        assert is_sentence(answer["hidden_states_error"])
    for record in caplog.records:
        assert is_sentence(record.getMessage())


@settings(deadline=None)
@given(HEADERS, HEADERS)
def test_names_of_different_ids_differ(one: str, two: str):
    assert (file_name(one) == file_name(two)) == (one == two)


@given(TEXT | HEADERS)
def test_what_is_shown_is_one_short_line(text: str):
    assert len(shown(text)) <= 103 and shown(text).isprintable()
    assert shown(text).isascii()


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "..", ".", "", "in", "out", "folder", "x.safetensors"]),
        max_size=8,
    )
)
def test_paths_of_known_parts(storage, parts: list[str]):
    asked = "/".join(parts)
    try:
        path = custom_path(storage, asked)
    except ValueError as error:
        assert is_sentence(str(error))
    else:
        assert path.startswith(f"{storage}/") and path == os.path.realpath(path)


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ("a.lock", "files of its own"),
        ("A.LOCK", "files of its own"),
        ("x.partial/a", "files of its own"),
        ("a.error", "files of its own"),
        ("a\nb", "cannot be printed"),
        ("a\ud800", "cannot be printed"),
        ("a\u202eb", "cannot be printed"),
        ("ü" * 124, "more than 247 bytes"),
        ("a/" * 600 + "b", "longer than 1000 bytes"),
        ("a/", "is a folder"),
        ([], "must be a file path"),
        (True, "must be a file path"),
    ],
)
def test_names_that_nobody_may_choose(storage, asked, problem):
    with pytest.raises(ValueError, match=problem):
        custom_path(storage, asked)


@pytest.mark.parametrize("value", ["false", 0, 1, [], {"a": 1}, 1.5])
def test_output_tokens_are_asked_for_with_true_or_false(storage, value):
    samples = Samples(FilePlaces(storage, False), sync=False)
    samples.open("r", [1], 1, {"include_output_tokens": value})
    answer = samples.finish("r", [1, 2], aborted=False)
    assert "must be true or false" in answer["hidden_states_error"]


@pytest.mark.parametrize("value", [[], "x", 3, True])
def test_parameters_that_are_no_object(storage, value):
    samples = Samples(FilePlaces(storage, False), sync=False)
    samples.open("r", [1], 1, value)
    answer = samples.finish("r", [1, 2], aborted=False)
    assert "must be an object" in answer["hidden_states_error"]


def test_two_calls_with_the_same_header_never_get_each_others_file(storage):
    """``n=2`` under one X-Request-Id, twice at once: a random end tells them apart."""
    samples = Samples(FilePlaces(storage, False), sync=False)
    told = {}
    ids = [f"{i}_cmpl-x-0-{call}" for call in ("0123abcd", "89abcdef") for i in (0, 1)]
    for request_id in (ids[0], ids[2], ids[1], ids[3]):
        samples.open(request_id, [1], 1, None)
        samples.schedule(request_id, 0, 1)
    for request_id in ids:
        told[request_id] = samples.finish(request_id, [1, 2], aborted=False)
    assert told[ids[0]] == told[ids[1]] != told[ids[2]] == told[ids[3]]
