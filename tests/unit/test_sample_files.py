"""Whole files with labels, whatever writes them."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file

from specshim._sample_files import (
    WholeWriter,
    label,
    room_for,
    sample_labels,
    say_unwritten,
    whole_file,
)

LABELS = {"model": "mödel/" + "x" * 300, "layer_ids": "[1, 4]", "route": "cache"}


def tensors() -> dict[str, torch.Tensor]:
    return {"hidden_states": torch.randn(5, 2, 8), "token_ids": torch.arange(5)}


def write(tensors, event, filename, lock_fd):
    save_file(tensors, filename)


def test_labels_are_added_and_tensors_stay(tmp_path):
    path = str(tmp_path / "a")
    before = tensors()
    WholeWriter(write, LABELS)(before, None, path, None)
    after = load_file(path)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {**LABELS, "num_tokens": "5"}
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_without_room_is_refused(tmp_path):
    path = str(tmp_path / "a")
    save_file(tensors(), path)
    with pytest.raises(ValueError, match="no room"):
        label(path, LABELS)


def test_room_is_no_matter_of_the_writer(tmp_path):
    path = str(tmp_path / "a")
    more = {
        "hidden_states_scales": torch.ones(5, 1, 1),
        room_for(LABELS): torch.ones(0),
    }
    save_file({**tensors(), **more}, path, metadata={"theirs": "kept"})
    label(path, LABELS)
    assert "hidden_states_scales" in load_file(path)
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata()["theirs"] == "kept"


def test_what_cannot_be_labelled_is_saved_without_labels(tmp_path, caplog):
    def without_room(tensors, event, filename, lock_fd):
        names = ("hidden_states", "token_ids")
        save_file({name: tensors[name] for name in names}, filename)

    writer = WholeWriter(without_room, LABELS)
    for name in ("a", "b"):
        writer(before := tensors(), None, str(tmp_path / name), None)
        after = load_file(tmp_path / name)
        assert all(torch.equal(after[key], before[key]) for key in before)
    assert len(caplog.records) == 1
    assert "saved without labels" in caplog.text


def test_what_is_no_sample_is_written_as_it_is(tmp_path):
    path = str(tmp_path / "a")
    WholeWriter(write, LABELS)({"logits": torch.ones(3)}, None, path, None)
    assert list(load_file(path)) == ["logits"]


def test_only_errors_of_the_system_ask_about_the_disk(caplog):
    say_unwritten("a", OSError(28, "No space left on device"))
    say_unwritten("b", KeyError("token_ids"))
    full, other = (record.getMessage() for record in caplog.records)
    assert full.endswith("is the disk full?")
    assert other.endswith("('token_ids').")


def test_a_failed_write_leaves_nothing_and_releases_the_lock(tmp_path, caplog):
    path = str(tmp_path / "a")
    lock = os.open(f"{path}.lock", os.O_CREAT | os.O_WRONLY)

    def half(tensors, event, filename, lock_fd):
        with open(filename, "wb") as file:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        WholeWriter(half)(tensors(), None, path, lock)
    assert os.listdir(tmp_path) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(lock)
    assert f"No hidden states in {path}" in caplog.text


def test_an_older_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")

    def fail() -> None:
        with whole_file(str(path)) as temporary:
            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY))
            assert path.read_text() == "old"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert os.listdir(tmp_path) == ["a"]
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    ("served", "named"),
    [("verifier", ["verifier"]), (["a", "b"], ["a", "b"]), (None, ["Qwen/Qwen3-8B"])],
)
def test_labels_name_what_the_server_calls_its_model(served, named, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))
    model = SimpleNamespace(model="Qwen/Qwen3-8B", served_model_name=served)
    labels = sample_labels(SimpleNamespace(model_config=model), [1, 4], "tap")
    assert json.loads(labels["served_model_name"]) == named
    assert (labels["model"], labels["layer_ids"]) == ("Qwen/Qwen3-8B", "[1, 4]")


def test_labels_name_a_folder_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    model = SimpleNamespace(model="models/tiny", served_model_name="models/tiny")
    labels = sample_labels(SimpleNamespace(model_config=model), None, "cache")
    assert labels["model"] == str(tmp_path / "models" / "tiny")
    assert json.loads(labels["served_model_name"]) == ["models/tiny"]
