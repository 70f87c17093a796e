"""Faults in real servers: each sample survives whole, or its client is told.

One server goes through all faults that it must outlive; then it, a second one on the
same path and a third one end in the ways that servers end.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("hs_connectors")
sys.path.append(str(Path(__file__).parents[1] / "e2e"))  # servers and values
from faulty_server import (
    ONE_PROCESS,
    FaultyServer,
    Known,
    Traces,
    faulty_server,
    small_disk,
)
from tally import SURVIVED, TOLD, Report, Tally, count

from specshim.tiny import ensure_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.envs]
Record = Callable[[Tally], Tally]

SERVERS = [  # release, and further options
    pytest.param(("0.32.0",), id="0.32.0"),
    pytest.param(("0.32.0", *ONE_PROCESS), id="one-process"),
    pytest.param(("0.24.0",), id="0.24.0", marks=pytest.mark.extended),
    pytest.param(("0.20.1",), id="0.20.1", marks=pytest.mark.extended),
    pytest.param(("0.32.0", "-tp", "2"), id="tp2", marks=pytest.mark.extended),
]
PATIENCE_OF_STOCK = 10.0  # seconds for which stock clients wait for a lock


@pytest.fixture(scope="session")
def record(request, tmp_path_factory) -> Record:
    """Add a line to the table, in which nothing may be lost and nothing wrong."""
    report = Report(tmp_path_factory.getbasetemp())
    request.config.pluginmanager.register(report)
    return report.add


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    return ensure_tiny_model("llama", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def known(model) -> Known:
    from e2e_values import random_prompts, reference

    prompts = random_prompts(24, seed=3)
    states = reference(model, prompts)
    return Known(prompts, dict(zip(map(tuple, prompts), states, strict=True)))


@pytest.fixture(scope="module", params=SERVERS)
def kind(request) -> tuple[str, ...]:
    return request.param


@pytest.fixture(scope="module")
def disk(kind, tmp_path_factory) -> Iterator[Path]:
    with small_disk(tmp_path_factory.mktemp("faults") / "disk") as folder:
        yield folder


@pytest.fixture
def own_disk(disk) -> Path:
    """The same folder, where it is a file system of its own."""
    if not disk.is_mount():
        pytest.skip("this user may not mount a tmpfs, which is the small disk")
    return disk


@pytest.fixture(scope="module")
def start(kind, known, model, disk, tmp_path_factory) -> Iterator[Callable]:
    """Start one more server on the small disk; all are gone at the end."""
    with ExitStack() as stack:

        def one_more() -> FaultyServer:
            release, *options = kind
            folder = tmp_path_factory.mktemp(f"server-{release}")
            return stack.enter_context(
                faulty_server(release, known, model, disk / "hs", folder, *options)
            )

        yield one_more


@pytest.fixture(scope="module")
def server(start) -> FaultyServer:
    """The server that outlives its faults; all its writer threads are started."""
    served = start()
    with served.rules({"call": "pwrite", "ends": ".partial", "delay": 0.2}):
        assert set(served.samples(32)) == {SURVIVED}
    return served


@pytest.fixture
def quiet(request) -> Iterator[None]:
    """Around a fault: the server holds afterwards what it held before, and no more."""
    server: FaultyServer = request.getfixturevalue("server")
    before = server.settle(lambda traces: is_quiet(traces, traces))
    yield
    after = server.settle(lambda traces: is_quiet(traces, before))
    assert is_quiet(after, before), (before, after)
    assert server.files() == []


def is_quiet(traces: Traces, before: Traces) -> bool:
    return (
        (traces.storage_descriptors, traces.blocks_in_use, traces.requests) == (0, 0, 0)
        and traces.descriptors <= before.descriptors
        and traces.threads <= before.threads
    )


def aborts(server: FaultyServer, number: int) -> Tally:
    """``number`` clients that leave at random moments, beside others that stay."""
    begun = time.monotonic()
    assert set(server.samples(64, concurrency=32)) == {SURVIVED}
    longest = (time.monotonic() - begun) / 2  # that 32 at a time take
    left: list[str] = []
    stayed: list[str] = []

    def one(_: int) -> str:
        moment = server.random.uniform(0, longest)
        return server.leave_early(moment, max_tokens=server.random.choice([1, 1, 6]))

    with ThreadPoolExecutor(32) as pool:
        while left.count(TOLD) < number:
            staying = [pool.submit(server.sample) for _ in range(8)]
            left += pool.map(one, range(40))
            stayed += [one.result() for one in staying]
    server.settle(lambda traces: is_quiet(traces, traces))
    orphans = server.take_orphans()
    assert set(stayed) <= {SURVIVED} and set(orphans) <= {SURVIVED}
    note = f"of {len(left)}, the others were answered first; {len(stayed)} stayed"
    return count(
        "clients disconnect", [*stayed, *left], note, injected=left.count(TOLD),
        orphans=len(orphans),
    )  # fmt: skip


@pytest.mark.parametrize("number", [75, pytest.param(1000, marks=pytest.mark.extended)])
def test_clients_that_leave_at_any_moment(server, number, record, quiet):
    with server.rules(
        {"call": "pwrite", "ends": ".partial", "every": 4, "delay": 0.02}
    ):
        tally = record(aborts(server, number))
    # What left when its answer was being written; see docs/protocol.md.
    assert tally.orphans <= tally.injected // 10


FAULTS = {
    "error on every 5th write": (
        "pwrite",
        ".partial",
        {"every": 5, "error": errno.EIO},
    ),
    "the 3rd write fails": (
        "pwrite",
        ".partial",
        {"skip": 2, "times": 1, "error": errno.EDQUOT},
    ),
    "truncate fails": ("ftruncate", ".partial", {"every": 3, "error": errno.EIO}),
    "rename fails": ("rename", ".partial", {"every": 3, "error": errno.ESTALE}),
    "file cannot be created": ("open", ".partial", {"every": 3, "error": errno.EACCES}),
    "flock of the lock file fails": (
        "flock",
        ".lock",
        {"every": 2, "error": errno.ENOLCK},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_failing_calls(server, fault, record, quiet):
    call, ends, how = FAULTS[fault]
    with server.rules({"call": call, "ends": ends, **how}):
        tally = record(count(fault, server.samples(24)))
    assert tally.told > 0 and tally.survived > 0


HARMLESS = {
    "writes are short": ("pwrite", {"short": True}, 0.0),
    "flock of the data does not work": ("flock", {"error": errno.EOPNOTSUPP}, 0.0),
    "slow disk, 0.5 s per write": ("pwrite", {"delay": 0.5}, 0.3),
}


@pytest.mark.parametrize("fault", HARMLESS)
def test_calls_that_fail_without_harm(server, fault, record, quiet):
    call, how, least = HARMLESS[fault]
    server.waits.clear()
    with server.rules({"call": call, "ends": ".partial", **how}):
        outcomes = server.samples(24)
    longest = max(server.waits)
    tally = record(count(fault, outcomes, f"longest wait for a lock {longest:.1f} s"))
    assert tally.survived == 24
    assert least < longest < PATIENCE_OF_STOCK


def test_a_full_disk(server, own_disk, record, quiet):
    filler = own_disk / "filler"
    there = os.statvfs(own_disk)
    free = there.f_bavail * there.f_frsize
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - (96 << 10))
    try:
        tally = record(count("disk full (tmpfs)", server.samples(32)))
    finally:
        filler.unlink()
    assert tally.told > 0
    assert set(server.samples(6)) == {SURVIVED}


def test_a_path_that_becomes_read_only(server, own_disk, record, quiet):
    for how in ("ro", "rw"):
        subprocess.run(["mount", "-o", f"remount,{how}", str(own_disk)], check=True)
        if how == "ro":
            tally = count("path read-only", server.samples(12))
    record(tally)
    assert tally.told == 12
    assert "Read-only file system" in server.log.read_text()
    assert set(server.samples(6)) == {SURVIVED}


def test_a_path_that_is_removed(server, record, quiet):
    with server.rules({"call": "pwrite", "ends": ".partial", "delay": 0.05}):
        with ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(server.samples, 48, reason=False)
            for _ in range(6):
                time.sleep(0.3)
                shutil.rmtree(server.storage, ignore_errors=True)
            outcomes = under_way.result()
    note = "told: no file and no lock, since both were removed"
    record(count("path removed 6 times", outcomes, note))
    assert set(server.samples(6)) == {SURVIVED}


def at(server: FaultyServer, name: str, prompt: int = 0, **body: int) -> dict | None:
    path = {"hidden_states_path": name}
    return server.ask(server.known.prompts[prompt], kv_transfer_params=path, **body)


def test_a_lock_that_another_process_holds(server, record, quiet):
    path = server.storage / "taken.safetensors"
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answers = [at(server, path.name) for _ in range(3)]
    assert all("locked by another process" in a["hidden_states_error"] for a in answers)
    assert not os.path.exists(path)
    outcomes = [server.fetch(answer) for answer in answers]
    record(count("lock held by another process", outcomes))
    assert server.fetch(at(server, path.name)) == SURVIVED


def test_two_requests_in_flight_that_name_one_file(server, record, quiet):
    with ThreadPoolExecutor(8) as pool:
        asked = [  # for so many tokens that they meet
            pool.submit(at, server, "one.safetensors", i, max_tokens=40)
            for i in range(8)
        ]
        answers = [one.result() for one in asked]
    refused = [a for a in answers if "hidden_states_error" in a]
    assert refused and all("in flight" in a["hidden_states_error"] for a in refused)
    # Those that did not meet it in flight replaced it; the last one is there.
    outcomes = [TOLD] * (len(answers) - 1) + [server.fetch({"hidden_states_path": str(
        server.storage / "one.safetensors")})]  # fmt: skip
    record(count("requests in flight name one file", outcomes))


def test_a_file_of_that_name_is_there_already(server, record, quiet):
    outcomes = []
    for content in (b"", b"not a sample", bytes(5000)):
        for lock in (True, False):
            (server.storage / "old.safetensors").write_bytes(content)
            if lock:
                (server.storage / "old.safetensors.lock").write_text("an old reason")
            outcomes.append(server.fetch(at(server, "old.safetensors", 1)))
    record(count("a file of that name is there", outcomes))
    assert set(outcomes) == {SURVIVED}


def test_a_reader_that_never_comes(server, record, quiet):
    never = [server.ask(prompt) for prompt in server.known.prompts[:12]]
    others = server.samples(12)
    late = [server.fetch(answer) for answer in never]
    record(count("a reader that comes never, or late", [*others, *late], injected=12))
    assert set(late) == {SURVIVED}


def test_preemption_under_memory_pressure(server, known, record, quiet):
    long = [prompt for prompt in known.prompts if len(prompt) > 90]
    before = server.metrics()["num_preemptions_total"]
    with ThreadPoolExecutor(16) as pool:
        asked = [
            pool.submit(lambda p=p: server.fetch(server.ask(p, max_tokens=40)))
            for p in (long * 4)[:32]
        ]
        outcomes = [one.result() for one in asked]
    preempted = int(server.metrics()["num_preemptions_total"] - before)
    record(count("preempted, computed again", outcomes, injected=preempted))
    assert preempted > 0 and set(outcomes) == {SURVIVED}


def test_two_servers_on_one_path_and_how_servers_end(server, start, record, disk):
    """In one test, since each start of a server takes half a minute."""
    # The second one sweeps while the first one writes.
    writing, stop = [], threading.Event()

    def keep_writing() -> None:
        while not stop.is_set():
            writing.extend(server.samples(12))
            time.sleep(2)  # the other one needs the cores to start

    busy = threading.Thread(target=keep_writing)
    busy.start()
    with server.rules({"call": "pwrite", "ends": ".partial", "delay": 0.05}):
        second = start()
        outcomes = second.samples(24)
        stop.set(), busy.join()
    record(count("two servers on one path", [*writing, *outcomes]))
    assert set(writing) | set(outcomes) == {SURVIVED}
    with server.rules({"call": "pwrite", "ends": ".partial", "delay": 1}):
        first = at(server, "both.safetensors", 0)
        other = at(second, "both.safetensors", 1)
    assert "locked by another process" in other["hidden_states_error"]
    outcomes = [server.fetch(first), second.fetch(other)]
    record(count("two servers, one name", outcomes))
    assert outcomes == [SURVIVED, TOLD]

    record(terminated(second))
    record(killed(server, "worker killed (SIGKILL)", server.kill_worker))
    left = server.files()
    third = start()
    record(swept(third, left))
    record(killed(third, "all processes killed (SIGKILL)", third.kill))


@pytest.mark.extended
def test_servers_that_are_killed_at_random(start, disk, record):
    """Ten times: a start on what the one before has left, load, and SIGKILL."""
    storage, outcomes, stale, whole = disk / "hs", [], 0, 0
    for number in range(10):
        left = sorted(str(p.relative_to(storage)) for p in storage.rglob("*"))
        server = start()
        server.random.seed(number)
        found = swept(server, left)
        outcomes += [SURVIVED] * found.survived
        stale, whole = stale + found.injected, whole + found.orphans
        answers = in_flight(server, 200, server.kill, delay=0.02, latest=2.5)
        # The other half of the readers do not come; what is complete stays for them.
        outcomes += [server.fetch(answer) for answer in answers[::2]]
    note = f"{stale} leftovers swept, {whole} complete files kept"
    record(count("killed at random, 10 times", outcomes, note, injected=10))
    assert stale and whole


def in_flight(
    server: FaultyServer,
    number: int,
    end: Callable,
    *,
    delay: float = 0.3,
    latest: float = 1.0,
) -> list[dict | None]:
    """Ask for samples of a slow disk, and end the server in their midst."""
    prompts = server.known.prompts
    with (
        ThreadPoolExecutor(16) as pool,
        server.rules({"call": "pwrite", "ends": ".partial", "delay": delay}),
    ):
        asked = [
            pool.submit(server.ask, prompts[i % len(prompts)]) for i in range(number)
        ]
        time.sleep(server.random.uniform(0.2, latest))
        end()
        return [one.result() for one in asked]


def terminated(server: FaultyServer) -> Tally:
    """SIGTERM: what was answered is completed, and the server leaves nothing else."""
    others = set(server.files())
    begun = time.monotonic()
    answers = in_flight(server, 16, server.process.terminate)
    server.process.wait(60)
    seconds = time.monotonic() - begun
    outcomes = [server.fetch(answer, reason=False) for answer in answers]
    left = [name for name in server.files() if name not in others]
    complete = server.take_orphans()  # answered, and the answer did not arrive
    assert [name for name in left if ".partial" in name] == []
    assert set(complete) <= {SURVIVED}
    locks = server.files()  # of failures whose clients had lost the connection
    assert all(name.endswith(".lock") for name in locks)
    return count(
        "SIGTERM", outcomes, f"ended after {seconds:.1f} s", orphans=len(complete)
    )


def killed(server: FaultyServer, fault: str, kill: Callable) -> Tally:
    """SIGKILL: whoever waits is told, and what is complete is right."""
    answers = in_flight(server, 16, kill)
    return count(fault, [server.fetch(answer) for answer in answers])


def swept(server: FaultyServer, left: list[str]) -> Tally:
    """A start on the path of a killed server: leftovers go, complete files stay."""
    complete = [name for name in left if name.endswith(".safetensors")]
    stale = [n for n in left if ".partial" in n or n.removesuffix(".lock") not in left]
    stale = [name for name in stale if name not in complete]
    now = server.files()
    assert [name for name in complete if name not in now] == []
    assert [name for name in now if name in stale] == []
    kept = server.take_orphans()
    outcomes = [*kept, *server.samples(12)]
    assert set(outcomes) == {SURVIVED}
    note = f"{len(stale)} leftovers swept, {len(complete)} complete files kept"
    return count(
        "start on a killed server's path",
        outcomes,
        note,
        injected=len(stale),
        orphans=len(kept),
    )
