"""Asked before vLLM starts: can Mooncake be loaded, does its master answer."""

from __future__ import annotations

import socket

import pytest

from specshim import _transport
from specshim._transport import backend_problem


def settings(address: str) -> dict[str, object]:
    return {"mooncake": {"master_server_address": address}}


@pytest.mark.parametrize("backend", ["file", "fp8"])
def test_files_need_no_transport(backend: str) -> None:
    assert backend_problem(backend, {}) is None


def test_mooncake_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_transport, "_IMPORT", "import mooncake_that_is_not_here")
    sentence = str(backend_problem("mooncake", settings("127.0.0.1:1")))
    assert "cannot load mooncake-transfer-engine (ModuleNotFoundError" in sentence
    assert sentence.endswith("(libibverbs).") and "\n" not in sentence


def test_a_master_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_transport, "_IMPORT", "")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert backend_problem("mooncake", settings(address)) is None
    sentence = backend_problem("mooncake", settings(address), seconds=0.3)
    assert f"No Mooncake master answers at {address} (Connection refused)" in str(
        sentence
    )
    cluster = settings("etcd://10.0.0.1:2379")  # Mooncake's to resolve
    assert backend_problem("mooncake", cluster) is None
