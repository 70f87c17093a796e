"""The file sink: what readers see at every moment, and that files equal stock's."""

from __future__ import annotations

import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
from safetensors.torch import load_file

from specshim.tap.folder import supports_locks
from specshim.tap.sink import FileSink


def sink(dtype: str = "float32", **options: object) -> FileSink:
    return FileSink(3, 8, dtype, {"model": "m", "layer_ids": "[1, 2, 3]"}, **options)


def piece(rows) -> memoryview:
    return memoryview(rows.contiguous().view(torch.uint8).reshape(-1).numpy())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_file_holds_what_was_written_in_any_order(tmp_path, dtype):
    rows = torch.randn(11, 3, 8).to(getattr(torch, dtype))
    path = str(tmp_path / "deep" / "a.safetensors")
    writer = sink(dtype).open(path, announced=True)
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda i: writer.write(i, piece(rows[i : i + 1])), reversed(range(11))
            )
        )
    writer.commit(11, range(100, 111))
    loaded = load_file(path)
    assert torch.equal(loaded["hidden_states"], rows)
    assert loaded["token_ids"].tolist() == list(range(100, 111))
    assert loaded["token_ids"].dtype == torch.int64
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["layer_ids"]) == [1, 2, 3]
    assert metadata["num_tokens"] == "11"


def test_rows_beyond_the_sample_are_cut_off(tmp_path):
    rows = torch.randn(5, 3, 8)
    path = str(tmp_path / "a")
    writer = sink().open(path, announced=False)
    writer.write(0, piece(rows))
    writer.commit(3, [1, 2, 3])
    assert torch.equal(load_file(path)["hidden_states"], rows[:3])


def test_no_token_ids(tmp_path):
    path = str(tmp_path / "a")
    writer = sink().open(path, announced=False)
    writer.write(0, piece(torch.ones(2, 3, 8)))
    writer.commit(2, [])
    loaded = load_file(path)
    assert loaded["token_ids"].shape == (0,) and loaded["hidden_states"].shape[0] == 2


def test_until_complete_there_is_a_held_lock_and_no_file(tmp_path):
    path = tmp_path / "a"
    writer = sink().open(str(path), announced=True)
    with open(f"{path}.lock") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not path.exists()
        writer.write(0, piece(torch.ones(1, 3, 8)))
        writer.commit(1, [5])
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert path.exists()


def test_an_aborted_sample_leaves_nothing(tmp_path):
    descriptors = len(os.listdir("/proc/self/fd"))
    writer = sink().open(str(tmp_path / "a"), announced=True)
    writer.write(0, piece(torch.ones(1, 3, 8)))
    writer.abort()
    writer.discard()
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_nothing_is_written_through_a_planted_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "a.lock").symlink_to(victim)
    with pytest.raises(OSError):
        sink().open(str(tmp_path / "a"), announced=True)
    assert victim.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["a.lock", "victim"]


def test_a_lock_held_by_another_process_fails_the_sample_at_once(tmp_path):
    first = sink().open(str(tmp_path / "a"), announced=True)
    with pytest.raises(OSError, match="locked by another process"):
        sink().open(str(tmp_path / "a"), announced=True)
    first.abort()


def test_a_file_system_that_refuses_to_remove_does_not_stop_the_server(
    tmp_path, monkeypatch
):
    writer = sink().open(str(tmp_path / "a"), announced=True)

    def read_only(*args, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "unlink", read_only)
    writer.abort()
    writer.discard()
    with open(tmp_path / "a.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody waits for it


def test_locks_are_tried_and_leave_no_trace(tmp_path, monkeypatch):
    assert supports_locks(str(tmp_path))

    def unsupported(*args):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert not supports_locks(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_long_names_in_any_script_fit(tmp_path):
    path = str(tmp_path / ("ü" * 120))
    writer = sink().open(path, announced=True)
    writer.write(0, piece(torch.ones(1, 3, 8)))
    writer.commit(1, [1])
    assert load_file(path)["token_ids"].tolist() == [1]


def test_rows_that_would_misalign_token_ids_are_refused():
    with pytest.raises(ValueError, match="one layer more or less"):
        FileSink(1, 3, "bfloat16", {})


def complete(path: str, sample: int) -> None:
    writer = sink().open(path, announced=True)
    writer.write(0, piece(torch.full((1, 3, 8), float(sample))))
    writer.commit(1, [sample])


def test_a_discarded_file_is_not_the_one_that_took_its_name(tmp_path):
    path = str(tmp_path / "a")
    writer = sink().open(path, announced=True)
    writer.write(0, piece(torch.ones(1, 3, 8)))
    writer.commit(1, [1])
    complete(path, 2)
    writer.discard()
    assert load_file(path)["token_ids"].tolist() == [2]


def test_what_gives_up_leaves_a_lock_that_another_took(tmp_path):
    path = str(tmp_path / "a")
    writer = sink().open(path, announced=True)
    os.unlink(f"{path}.lock")  # a client that was done with an earlier file
    other = sink().open(path, announced=True)
    writer.abort()
    writer.discard()
    with open(f"{path}.lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other.abort()
    other.discard()
    assert os.listdir(tmp_path) == []


def test_a_temporary_file_that_is_swept_before_it_is_held_is_made_again(
    tmp_path, monkeypatch
):
    flock, swept = fcntl.flock, []

    def sweep_first(descriptor, how):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith(".partial") and not swept:
            swept.append(path)
            os.unlink(path)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    complete(str(tmp_path / "a"), 7)
    assert swept and load_file(tmp_path / "a")["token_ids"].tolist() == [7]


def test_a_lock_file_that_cannot_be_locked_is_not_left(tmp_path, monkeypatch):
    def unsupported(*args):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(OSError, match="No locks available"):
        sink().open(str(tmp_path / "a"), announced=True)
    assert os.listdir(tmp_path) == []
