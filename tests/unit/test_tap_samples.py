"""The scheduler's half: names, paths, siblings, coverage, what the client is told."""

from __future__ import annotations

import os

import pytest

from specshim.tap.places import NOWHERE, FilePlaces, custom_path, file_name
from specshim.tap.samples import Samples, Siblings


def make(
    storage: str = "/data", *, custom: bool = False, sync: bool = False, **more: bool
) -> Samples:
    return Samples(FilePlaces(storage, custom), sync=sync, **more)


def run(samples: Samples, request_id: str, prompt: list[int], **parameters: object):
    samples.open(request_id, prompt, len(prompt), parameters)
    samples.schedule(request_id, 0, len(prompt))
    return samples.take_step()


def test_a_prompt_is_opened_once_with_its_size_and_ids():
    samples = make()
    step = run(samples, "cmpl-a-0", [7, 8, 9])
    opened = step.opened["cmpl-a-0"]
    assert (opened.path, opened.rows, opened.token_ids) == (
        "/data/cmpl-a-0.safetensors",
        3,
        (7, 8, 9),
    )
    assert samples.finish("cmpl-a-0", [7, 8, 9, 1], aborted=False) == {
        "hidden_states_path": "/data/cmpl-a-0.safetensors"
    }
    assert samples.take_step().closed["cmpl-a-0"].rows == 3


def test_rows_from_the_prefix_cache_fail_the_sample_with_a_reason():
    samples = make()
    samples.open("r", [1] * 40, 40, {})
    samples.schedule("r", 16, 24)
    assert "r" not in samples.take_step().opened
    answer = samples.finish("r", [1] * 41, aborted=False)
    assert answer is not None
    assert "tokens 0 to 15 were not computed" in answer["hidden_states_error"]
    assert answer["hidden_states_path"] == NOWHERE + answer["hidden_states_error"]


def test_a_resumed_request_keeps_its_file_and_may_repeat_rows():
    samples = make()
    samples.open("r", [1] * 40, 40, {})
    samples.schedule("r", 0, 32)
    samples.take_step()
    samples.open("r", [1] * 40, 40, {})  # model runner V2 sends it as new again
    samples.schedule("r", 0, 40)
    step = samples.take_step()
    assert step.opened == {} and step.dropped == {}
    assert samples.finish("r", [1] * 41, aborted=False) is not None


def test_a_gap_after_preemption_is_dropped_at_the_worker():
    samples = make()
    samples.open("r", [1] * 40, 40, {})
    samples.schedule("r", 0, 16)
    samples.take_step()
    samples.schedule("r", 32, 8)
    assert "tokens 16 to 31" in samples.take_step().dropped["r"]


def test_output_tokens_are_all_but_the_last():
    samples = make()
    assert (
        run(samples, "r", [7, 8], include_output_tokens=True).opened["r"].rows is None
    )
    samples.schedule("r", 2, 1)
    samples.finish("r", [7, 8, 5, 6], aborted=False)
    closed = samples.take_step().closed["r"]
    assert (closed.rows, closed.token_ids) == (3, (7, 8, 5))


def test_prompt_embeddings_have_rows_and_no_ids():
    samples = make()
    samples.open("r", None, 5, {"include_output_tokens": True})
    samples.schedule("r", 0, 5)
    assert samples.take_step().opened["r"].token_ids == ()
    samples.finish("r", [0, 0, 0, 0, 0, 9], aborted=False)
    closed = samples.take_step().closed["r"]
    assert (closed.rows, closed.token_ids) == (5, ())


def test_an_aborted_request_is_dropped_and_promises_nothing():
    samples = make()
    run(samples, "r", [1, 2])
    assert samples.finish("r", [1, 2], aborted=True) is None
    assert list(samples.take_step().dropped) == ["r"]
    assert samples.finish("never-scheduled", [1], aborted=True) is None


def test_an_aborted_request_that_the_worker_never_saw_is_not_sent_to_it():
    samples = make()
    samples.open("r", [1, 2], 2, {})
    samples.finish("r", [1, 2], aborted=True)
    step = samples.take_step()
    assert (step.opened, step.dropped) == ({}, {})


def test_an_abort_that_comes_late_takes_back_what_nobody_was_told():
    samples = make()
    opened = run(samples, "r", [1, 2]).opened["r"]
    samples.finish("r", [1, 2, 3], aborted=False)
    samples.withdraw(["r", "of another server"])
    step = samples.take_step()
    assert (list(step.closed), step.withdrawn) == (["r"], [opened.serial])
    samples.withdraw(["r"])
    assert samples.take_step().withdrawn == []


def test_of_a_refused_sample_nothing_is_taken_back():
    samples = make()
    run(samples, "r", [1, 2], hidden_states_path="x")
    samples.finish("r", [1, 2, 3], aborted=False)
    samples.withdraw(["r"])
    assert samples.take_ended().withdrawn == []


def test_a_streamed_http_answer_leaves_no_file_behind():
    samples = make()
    samples.open("cmpl-a-0", [1], 1, {}, streamed=True)
    assert samples.take_step().opened == {}
    answer = samples.finish("cmpl-a-0", [1, 2], aborted=False)
    assert "streamed" in answer["hidden_states_error"]
    samples.open("mine", [1], 1, {}, streamed=True)  # AsyncLLM tells its caller
    assert list(samples.take_step().opened) == ["mine"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("0_cmpl-a-0", "1_cmpl-a-0"),  # n = 2
        ("cmpl-a-0", "cmpl-a-1"),  # two prompts
        ("cmpl-a-0-0123abcd", "cmpl-a-1-89abcdef"),  # the same, later releases
        ("0_cmpl-a-0-0123abcd", "0_cmpl-a-1-01234567"),  # both at once
        ("0_cmpl-a-0-0123abcd", "1_cmpl-a-1-01234567"),
    ],
)
def test_one_call_that_became_several_requests_leaves_one_file(first, second):
    samples = make()
    run(samples, first, [1, 2])
    assert run(samples, second, [1, 2]).opened == {}
    told = samples.finish(first, [1, 2, 3], aborted=False)
    assert samples.finish(second, [1, 2, 3], aborted=False) == told


@pytest.mark.parametrize("sibling", ["2_chatcmpl-a", "cmpl-a-1", "1_cmpl-a-0-01234567"])
def test_a_sibling_whose_first_went_to_another_engine_leaves_no_file(sibling):
    samples = make()
    assert run(samples, sibling, [1]).opened == {}
    assert samples.finish(sibling, [1, 2], aborted=False) is None


@pytest.mark.parametrize(
    "ids", [("7_x", "5_x"), ("chatcmpl-a", "cmpl-0-0-01234567"), ("3", "4")]
)
def test_ids_that_only_look_like_siblings_are_requests_of_their_own(ids):
    siblings = Siblings()
    assert [siblings.first_of(i) for i in ids] == [None, None]


def test_a_client_chooses_no_path_unless_allowed():
    samples = make()
    assert run(samples, "r", [1], hidden_states_path="/etc/x").opened == {}
    answer = samples.finish("r", [1, 2], aborted=False)
    assert "allow_custom_save_path" in answer["hidden_states_error"]


def test_an_allowed_path_must_lie_below_the_storage(tmp_path):
    root = tmp_path / "hs"
    root.mkdir()
    (root / "out").symlink_to(tmp_path)
    assert custom_path(str(root), "a/b.safetensors") == str(root / "a/b.safetensors")
    assert custom_path(str(root), str(root / "c")) == str(root / "c")
    (root / "folder").mkdir()
    for asked in ("../x", "/etc/passwd", "out/x", "", ".", "a\0b", 3, None, "folder"):
        with pytest.raises(ValueError, match="hidden_states_path"):
            custom_path(str(root), asked)


def test_two_requests_in_flight_never_share_a_file(tmp_path):
    samples = make(str(tmp_path), custom=True)
    assert run(samples, "a", [1], hidden_states_path="x").opened
    assert run(samples, "b", [1], hidden_states_path="x").opened == {}
    assert (
        "in flight" in samples.finish("b", [1, 2], aborted=False)["hidden_states_error"]
    )


@pytest.mark.parametrize(
    "request_id",
    ["../../etc/passwd", "a/b", ".hidden", "", "x" * 500, "ü", "\ud800", "a\0b"],
)
def test_odd_ids_give_plain_distinct_names(request_id):
    name = file_name(request_id)
    assert os.path.basename(name) == name and not name.startswith(".")
    assert len(name.encode()) < 240 and name.isascii() and "\0" not in name
    assert name != file_name(request_id + "x")


def test_sync_cannot_give_output_tokens():
    samples = make(sync=True)
    assert run(samples, "r", [1], include_output_tokens=True).opened == {}
    assert "sync" in samples.finish("r", [1, 2], aborted=False)["hidden_states_error"]


def test_what_the_worker_says_in_time_is_in_the_response():
    samples = make()
    opened = run(samples, "r", [1, 2]).opened["r"]
    samples.failed({opened.serial: "the disk is full"})
    answer = samples.finish("r", [1, 2, 3], aborted=False)
    assert answer["hidden_states_error"] == "the disk is full"
    assert samples.take_step().dropped == {"r": "the disk is full"}


def test_late_news_is_of_nobody_else():
    samples = make()
    early = run(samples, "r", [1, 2]).opened["r"]
    samples.finish("r", [1, 2, 3], aborted=False)
    run(samples, "r", [1, 2])  # the same id, path and all
    samples.failed({early.serial: "the disk is full"})
    told = samples.finish("r", [1, 2, 3], aborted=False)
    assert told == {"hidden_states_path": "/data/r.safetensors"}


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_siblings_of_a_failed_sample_say_so_too(first_ends_first):
    samples = make()
    opened = run(samples, "0_cmpl-a-0", [1, 2]).opened["0_cmpl-a-0"]
    run(samples, "1_cmpl-a-0", [1, 2])
    samples.failed({opened.serial: "the disk is full"})
    ids = ["0_cmpl-a-0", "1_cmpl-a-0"]
    for request_id in ids if first_ends_first else reversed(ids):
        answer = samples.finish(request_id, [1, 2, 3], aborted=False)
        assert answer["hidden_states_error"] == "the disk is full"


@pytest.mark.parametrize("request_id", ["0_cmpl-a-0", "1_chatcmpl-a"])
def test_choices_that_several_engines_compute_have_no_sample(request_id):
    samples = make(data_parallel=True)
    assert run(samples, request_id, [1]).opened == {}
    answer = samples.finish(request_id, [1, 2], aborted=False)
    assert "ask for n = 1" in answer["hidden_states_error"]
    assert run(samples, "cmpl-b-0", [1]).opened  # the response names its own


def test_a_prompt_that_comes_in_pieces_has_no_sample():
    samples = make()
    samples.is_session("r")
    assert run(samples, "r", [1, 2]).opened == {}
    assert run(samples, "r", [1, 2, 3, 4]).opened == {}  # the next piece
    answer = samples.finish("r", [1, 2, 3, 4], aborted=False)
    assert "streaming input" in answer["hidden_states_error"]
    assert run(samples, "r", [1]).opened  # a request of its own


def test_a_reason_of_any_length_gives_a_path_that_never_exists(tmp_path):
    path = FilePlaces(str(tmp_path), True).refuse("x/" * 5000)["hidden_states_path"]
    assert not os.path.exists(path)
    with pytest.raises(NotADirectoryError):
        os.open(path, os.O_RDONLY)
    with pytest.raises(NotADirectoryError):
        os.open(f"{path}.lock", os.O_RDWR)
