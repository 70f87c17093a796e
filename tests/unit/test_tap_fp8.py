"""The FP8 sink: its files are what hs_connectors' connector would have saved."""

from __future__ import annotations

import fcntl
import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
fp8_utils = pytest.importorskip("hs_connectors.fp8_utils")
from hs_connectors import FP8Transfer
from safetensors.torch import load_file, save_file

from specshim.tap import fp8
from specshim.tap.fp8 import FP8Sink

SHAPE = (3, 8)


def sink(dtype: str = "bfloat16", **options: object) -> FP8Sink:
    return FP8Sink(*SHAPE, dtype, {"model": "m"}, **options)


def states(rows: int, dtype: str = "bfloat16"):
    torch.manual_seed(rows)
    sizes = torch.logspace(-6, 3, rows)[:, None, None]  # tokens of all magnitudes
    return (torch.randn(rows, *SHAPE) * sizes).to(getattr(torch, dtype))


def piece(rows) -> memoryview:
    return memoryview(rows.contiguous().view(torch.uint8).reshape(-1).numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("rows", [1, 2, 11])
def test_the_tensors_are_those_that_hs_connectors_saves(
    tmp_path, dtype, rows, monkeypatch
):
    monkeypatch.setattr(fp8, "_BLOCK", 2 * 24)  # two rows at a time
    recorded, ids = states(rows, dtype), torch.arange(100, 100 + rows)
    quantised, scales = fp8_utils.quantize_tensor_to_fp8(recorded)
    theirs = {
        "hidden_states": quantised,
        fp8_utils.SCALES_KEY: scales,
        "token_ids": ids,
    }
    save_file(theirs, tmp_path / "theirs.safetensors")
    path = str(tmp_path / "ours.safetensors")
    writer = sink(dtype).open(path, announced=True)
    for start in reversed(range(0, rows, 4)):
        writer.write(start, piece(recorded[start : start + 4]))
    writer.commit(rows, ids.tolist())
    ours, theirs = load_file(path), load_file(tmp_path / "theirs.safetensors")
    assert sorted(ours) == sorted(theirs)
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype
        assert ours[name].shape == tensor.shape
        assert ours[name].view(torch.uint8).equal(tensor.view(torch.uint8))
    transfer = FP8Transfer(tmp_path)
    ours, theirs = (
        transfer.get_generated({"hidden_states_path": tmp_path / f"{who}.safetensors"})
        for who in ("ours", "theirs")
    )
    assert torch.equal(ours["hidden_states"], theirs["hidden_states"])


def test_recomputed_rows_take_their_scales_with_them(tmp_path):
    path = str(tmp_path / "a")
    writer = sink().open(path, announced=False, rows=6)
    writer.write(0, piece(states(6) * 100))
    writer.write(2, piece(states(6)[2:]))
    writer.write(0, piece(states(6)[:2]))
    writer.commit(6, range(6))
    again = str(tmp_path / "b")
    writer = sink().open(again, announced=False)  # of unknown size
    writer.write(0, piece(states(6)))
    writer.commit(5, range(5))  # and one row too many
    first, second = load_file(path), load_file(again)
    for name in ("hidden_states", fp8_utils.SCALES_KEY):
        bytes_of = [found[name][:5].view(torch.uint8) for found in (first, second)]
        assert torch.equal(*bytes_of)


def test_a_scale_per_token_and_layer_would_be_kept_too(tmp_path, monkeypatch):
    def finer(rows):
        scales = (rows.float().abs().amax(-1, keepdim=True) / 448).clamp(min=1e-12)
        return (rows.float() / scales).to(torch.float8_e4m3fn), scales

    monkeypatch.setattr(fp8_utils, "quantize_tensor_to_fp8", finer)
    path, recorded = str(tmp_path / "a"), states(4)
    writer = sink().open(path, announced=False, rows=4)
    writer.write(0, piece(recorded[:1])), writer.write(1, piece(recorded[1:]))
    writer.commit(4, range(4))
    assert load_file(path)[fp8_utils.SCALES_KEY].equal(finer(recorded)[1])


def test_scales_that_are_not_per_token_fail_the_sample(tmp_path, monkeypatch):
    def whole(rows):
        return rows.to(torch.float8_e4m3fn), torch.ones(1, 1, 1)

    monkeypatch.setattr(fp8_utils, "quantize_tensor_to_fp8", whole)
    writer = sink().open(str(tmp_path / "a"), announced=True)
    with pytest.raises(ValueError, match="not one per token"):
        writer.write(0, piece(states(4)))
    writer.abort()
    writer.discard()
    assert os.listdir(tmp_path) == []


def test_the_lock_is_held_until_the_file_is_there(tmp_path):
    path = tmp_path / "a"
    writer = sink().open(str(path), announced=True)
    with open(f"{path}.lock") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        writer.write(0, piece(states(1)))
        assert not path.exists()
        writer.commit(1, [5])
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert path.exists()


def test_rows_that_were_never_written_fail_the_sample(tmp_path):
    writer = sink().open(str(tmp_path / "a"), announced=False, rows=4)
    writer.write(0, piece(states(3)))
    with pytest.raises(ValueError, match="never quantised"):
        writer.commit(4, range(4))
    writer.abort()
    writer.discard()
    assert os.listdir(tmp_path) == []
