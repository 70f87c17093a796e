"""A hub model whose config is not cached: the real hub client, a hub on loopback."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from specshim.detect import ModelNotFound
from specshim.detect.hub import detect_or_download, model_of_options

CONFIG = {"model_type": "llama", "num_hidden_layers": 6, "hidden_size": 64}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Answers for one file of one model, as the hub's resolve endpoint does."""

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        self.answer(json.dumps(CONFIG).encode())

    def answer(self, body: bytes) -> None:
        found = self.path.startswith("/org/tiny/resolve/")
        self.send_response(200 if found else 404)
        self.send_header("ETag", '"1"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(json.dumps(CONFIG))))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def layers_of(model: str, hub: str, cache, **variables: str) -> str:
    """In a process of its own: the client reads its variables when imported."""
    code = (
        "import sys; from specshim.detect.hub import detect_or_download as d;"
        "facts = d(sys.argv[1]); print(facts.name, facts.num_hidden_layers)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, model],
        env={"HF_ENDPOINT": hub, "HF_HOME": str(cache), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_the_config_is_fetched_once_and_then_read_from_the_cache(hub, tmp_path):
    pytest.importorskip("huggingface_hub")
    assert layers_of("org/tiny", hub, tmp_path) == "org/tiny 6"
    again = layers_of("org/tiny", "http://127.0.0.1:9", tmp_path, HF_HUB_OFFLINE="1")
    assert again == "org/tiny 6"


def test_a_model_that_is_not_to_be_had_is_a_sentence(hub, tmp_path):
    pytest.importorskip("huggingface_hub")
    tried = "ModelNotFound: .* A download was tried and failed: "
    assert re.search(f"{tried}.*404", layers_of("org/absent", hub, tmp_path))
    offline = layers_of("org/tiny", hub, tmp_path, HF_HUB_OFFLINE="1")
    assert re.search(f"{tried}OfflineMode", offline)


def test_a_hub_out_of_reach_is_asked_once_and_quietly(tmp_path):
    pytest.importorskip("huggingface_hub")
    code = "from specshim.detect.hub import detect_or_download as d; d('org/tiny')"
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert time.monotonic() - start < 15
    assert "Connection refused" in done.stderr.splitlines()[-1]
    assert "Retrying" not in done.stderr


def test_the_options_of_vllm_say_where_and_what_the_config_is(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 1e4}
    config = {**CONFIG, "text_config": {**CONFIG, "rope_parameters": rope}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    over = {"text_config": {"num_hidden_layers": 4}}
    options = {"hf_config_path": str(tmp_path), "hf_overrides": over}
    facts = model_of_options("org/elsewhere", options)
    assert (facts.name, facts.num_hidden_layers) == ("org/elsewhere", 4)
    assert facts.hidden_size == 64
    callable_overrides = {**options, "hf_overrides": lambda config: config}
    assert model_of_options("x", callable_overrides).num_hidden_layers == 6
    with pytest.raises(ModelNotFound, match="neither a folder nor in the"):
        model_of_options("org/never-cached", {"revision": "v2", "hf_token": True})


def test_a_local_folder_is_never_looked_for_on_the_hub(tmp_path):
    for model in (str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(ModelNotFound) as error:
            detect_or_download(model)
        assert "download" not in str(error.value)
