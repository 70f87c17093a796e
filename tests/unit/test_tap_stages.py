"""Pipeline stages that share a file: it is whole and right, or absent."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
from safetensors.torch import load_file

from specshim._sample_files import temporary_name
from specshim.tap.layers import TapRefused
from specshim.tap.leftovers import remove_leftovers
from specshim.tap.parts import PartMissing, Share
from specshim.tap.staged import StagedSink
from specshim.tap.stages import Stage, check_shared

IDS, HIDDEN = (0, 8, 3, 4, 4, 7), 8
STAGES = [Stage(rank, (0, 4, 6, 8)) for rank in range(3)]


def shares() -> list[Share]:
    owners = STAGES[0].owners(IDS)
    return [
        Share(s.rank, tuple(r for r in owners if r != s.rank), s.slots(IDS))
        for s in STAGES
    ]


def sinks(folder, **options) -> list[StagedSink]:
    return [
        StagedSink(len(IDS), HIDDEN, "float32", {}, storage=str(folder), share=share)
        for share in shares()
    ]


def opened(folder, name: str = "a.safetensors") -> list:
    """The writers of all stages, in the order in which a step reaches them."""
    temporary, path = temporary_name(), str(folder / name)
    return [s.open(path, announced=True, temporary=temporary) for s in sinks(folder)]


def states(rows: int):
    return torch.arange(rows * len(IDS) * HIDDEN).float().view(rows, len(IDS), HIDDEN)


def columns(share: Share, rows, start: int, count: int) -> memoryview:
    mine = rows[start : start + count, list(share.columns)].contiguous()
    return memoryview(mine.view(torch.uint8).reshape(-1).numpy())


def seen_by_a_reader(folder) -> bool:
    """Whether a client that waits for the lock would go on now."""
    descriptor = os.open(folder / "a.safetensors.lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def files(folder) -> list[str]:
    return sorted(n for n in os.listdir(folder) if not n.endswith(".lock"))


def test_an_id_belongs_to_the_stage_that_runs_its_layer_and_the_last_to_the_last():
    assert [stage.slots(IDS) for stage in STAGES] == [(0, 2), (3, 4), (1, 5)]
    assert [list(stage.layers) for stage in STAGES] == [
        [0, 1, 2, 3],
        [4, 5],
        [6, 7],
    ]
    assert STAGES[0].owners((0, 3)) == (0,) and STAGES[0].owners((4, 8)) == (1, 2)
    assert [s.completes for s in shares()] == [False, False, True]


@pytest.mark.parametrize("seed", range(12))
def test_stages_end_in_any_order_and_the_file_is_whole(tmp_path, seed):
    source, rows, writers = random.Random(seed), states(40), opened(tmp_path)

    def stage(writer, share: Share, seconds: float) -> None:
        for start in range(0, 40, 16):
            time.sleep(seconds)
            count = min(16, 40 - start)
            writer.write(start, columns(share, rows, start, count))
        writer.commit(40, range(40))

    threads = [
        threading.Thread(target=stage, args=(w, s, source.choice([0, 0.003, 0.01])))
        for w, s in zip(writers, shares(), strict=True)
    ]
    source.shuffle(threads)
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not seen_by_a_reader(tmp_path) or files(tmp_path) == ["a.safetensors"]
    loaded = load_file(tmp_path / "a.safetensors")
    assert torch.equal(loaded["hidden_states"], rows)
    assert loaded["token_ids"].tolist() == list(range(40))
    assert seen_by_a_reader(tmp_path)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_earlier_stage_that_fails_is_told_by_the_one_that_completes(
    tmp_path, failing
):
    rows, writers = states(4), opened(tmp_path)
    for writer, share in list(zip(writers, shares(), strict=True))[:2]:
        writer.write(0, columns(share, rows, 0, 4))
        if share.rank == failing:
            writer.abort("its rows could not be written: no space")
        else:
            writer.commit(4, range(4))
    writers[2].write(0, columns(shares()[2], rows, 0, 4))
    with pytest.raises(PartMissing, match=f"stage {failing}: its rows .* no space"):
        writers[2].commit(4, range(4))
    writers[2].abort("x")
    writers[2].report("the reason")
    assert files(tmp_path) == []
    assert (tmp_path / "a.safetensors.lock").read_text() == "the reason"
    for writer in writers[:2]:
        writer.report("the reason")  # the lock file is not theirs
    assert os.listdir(tmp_path) == ["a.safetensors.lock"]


def test_an_aborted_request_leaves_nothing_whoever_comes_first(tmp_path):
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        writers = opened(tmp_path)
        for index in order:
            writers[index].abort("the request was aborted")
            writers[index].discard()
        assert os.listdir(tmp_path) == []


def test_a_request_refused_by_the_last_stage_leaves_nothing_of_the_others(tmp_path):
    (tmp_path / "a.safetensors.lock").touch()
    holder = os.open(tmp_path / "a.safetensors.lock", os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    temporary, path = temporary_name(), str(tmp_path / "a.safetensors")
    first, second, last = sinks(tmp_path)
    early = [s.open(path, announced=True, temporary=temporary) for s in (first, second)]
    with pytest.raises(OSError, match="locked by another process"):
        last.open(path, announced=True, temporary=temporary)
    for writer in early:
        writer.abort("refused")
        writer.discard()
    os.close(holder)
    assert os.listdir(tmp_path) == ["a.safetensors.lock"]


def test_a_stage_that_is_killed_frees_the_one_that_waits_and_no_file_appears(tmp_path):
    temporary, path = temporary_name(), str(tmp_path / "a.safetensors")
    code = (
        "import sys; from specshim.tap.parts import Share\n"
        "from specshim.tap.staged import StagedSink\n"
        f"sink = StagedSink(2, 8, 'float32', {{}}, share=Share(0, (1,), (0,)))\n"
        f"writer = sink.open({path!r}, announced=True, temporary={temporary!r})\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as early:
        assert early.stdout.readline() == b"open\n"
        sink = StagedSink(2, HIDDEN, "float32", {}, share=Share(1, (0,), (1,)))
        writer = sink.open(path, announced=True, temporary=temporary)
        errors: list[BaseException] = []

        def commit() -> None:
            try:
                writer.commit(4, range(4))
            except PartMissing as error:
                errors.append(error)

        waiting = threading.Thread(target=commit)
        waiting.start()
        time.sleep(0.2)
        assert waiting.is_alive()
        early.send_signal(signal.SIGKILL)
        waiting.join(10)
        early.stdin.close()
    assert "stage 0: it ended before its layers were written" in str(errors[0])
    writer.abort("x")
    writer.report("killed")
    assert files(tmp_path) == []


def test_a_shared_file_is_swept_once_no_stage_holds_it(tmp_path):
    writers = opened(tmp_path)
    writers[2].abort("x")  # removes it; so does nobody where the last stage is killed
    temporary = temporary_name()
    early = sinks(tmp_path)[0].open(
        str(tmp_path / "b.safetensors"), announced=True, temporary=temporary
    )
    assert remove_leftovers(str(tmp_path)) == 0
    early.commit(1, [1])
    assert files(tmp_path) == [temporary]
    assert remove_leftovers(str(tmp_path)) == 1


def test_a_link_or_a_second_name_in_the_shared_files_place_is_refused(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    sink, path = sinks(tmp_path)[0], str(tmp_path / "a.safetensors")
    for plant in (os.symlink, os.link):
        temporary = temporary_name()
        plant(victim, tmp_path / temporary)
        with pytest.raises(OSError):
            sink.open(path, announced=True, temporary=temporary)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("shared", [True, False])
def test_stages_that_do_not_share_the_storage_path_are_refused(tmp_path, shared):
    other = tmp_path / ("one" if shared else "two")
    said: dict[str, str] = {}
    meet, wait = threading.Barrier(2), threading.Barrier(2)

    def group(rank: int) -> SimpleNamespace:
        def broadcast(name: str, src: int) -> str:
            if rank == src:
                said["name"] = name
            meet.wait(10)
            return said["name"]

        return SimpleNamespace(
            rank_in_group=rank,
            broadcast_object=broadcast,
            barrier=lambda: wait.wait(10),
        )

    first = threading.Thread(
        target=check_shared, args=(str(tmp_path / "one"), group(0))
    )
    for folder in (tmp_path / "one", other):
        folder.mkdir(exist_ok=True)
    first.start()
    if shared:
        check_shared(str(other), group(1))
    else:
        with pytest.raises(TapRefused, match="do not share the storage path"):
            check_shared(str(other), group(1))
    first.join(10)
    assert not first.is_alive() and os.listdir(tmp_path / "one") == []
