"""What a Mooncake client is told, and the bound on samples that are put together."""

from __future__ import annotations

import json
import threading

import pytest

torch = pytest.importorskip("torch")
store = pytest.importorskip("hs_connectors.mooncake_store")

from specshim.tap.layers import TapRefused
from specshim.tap.mooncake import Form, MooncakePlaces, Room, RowShape
from specshim.tap.samples import Samples

ROW = RowShape(2, 8, torch.bfloat16)


def test_the_client_is_told_the_manifest_of_its_sample():
    samples = Samples(MooncakePlaces(ROW), sync=False)
    samples.open("cmpl-a/1-0", [7, 8, 9], 3, {"include_output_tokens": True})
    samples.schedule("cmpl-a/1-0", 0, 3)
    samples.schedule("cmpl-a/1-0", 3, 1)
    opened = samples.take_step().opened["cmpl-a/1-0"]
    told = samples.finish("cmpl-a/1-0", [7, 8, 9, 1, 2], aborted=False)
    assert told == json.loads(json.dumps(told))  # it travels in the response
    assert told["handle"] == opened.path and told["handle"].startswith("kcmpl-a_1-0-")
    assert told["version"] == store.VERSION
    assert told["metadata"] == {
        "num_tokens": 4,
        "total_aligned_bytes": 192,
        "extract_mode": "all",
    }
    expected = {"shape": [4, 2, 8], "dtype": "torch.bfloat16", "nbytes": 128}
    assert told["tensors"]["hidden_states"] == {**expected, "offset": 0}
    expected = {"shape": [4], "dtype": "torch.int64", "nbytes": 32}
    assert told["tensors"]["token_ids"] == {**expected, "offset": 128}


def test_keys_are_never_used_again():
    places = MooncakePlaces(ROW)
    assert places.choose("a", {}) != places.choose("a", {})
    assert places.choose("a.b", {})[:5] == places.choose("a_b", {})[:5]
    with pytest.raises(ValueError, match="samples go to Mooncake"):
        places.choose("a", {"hidden_states_path": "/x"})


def test_siblings_are_told_what_the_first_is_told():
    samples = Samples(MooncakePlaces(ROW), sync=False)
    for index in (0, 1):
        samples.open(f"cmpl-a-{index}", [1, 2], 2, {})
        samples.schedule(f"cmpl-a-{index}", 0, 2)
    early = samples.finish("cmpl-a-1", [1, 2, 3], aborted=False)
    assert samples.finish("cmpl-a-0", [1, 2, 3], aborted=False) == early


def test_room_is_waited_for_only_while_samples_leave():
    room = Room(100)
    room.take(80)
    with pytest.raises(MemoryError, match="raise max_buffer_bytes"):
        room.take(30)  # the 80 may be waiting for the caller: never wait for them
    room.leaving(1)
    waiting = threading.Thread(target=room.take, args=(30,))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    room.release(80)
    room.leaving(-1)
    waiting.join(5)
    assert not waiting.is_alive()


def test_an_unknown_way_of_storing_is_refused(monkeypatch):
    class Later(store.MooncakeHiddenStatesStore):
        def put_sample(self, sample):
            raise NotImplementedError

    monkeypatch.setattr(store, "MooncakeHiddenStatesStore", Later)
    with pytest.raises(TapRefused, match="unknown to specshim"):
        Form()
