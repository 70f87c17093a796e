"""speculators 0.9 trains drafters on what a server gives: its own commands throughout.

Data is prepared by ``prepare-data`` over the server's render endpoint, states come from
the server while training or are saved first, and spoilt ones end the run.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch")
from corrupting_proxy import CORRUPTIONS, corrupting, spoil
from serving import Server, environment, python_of, serve

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
LAYER_IDS = ("2", "4", "6")
EPOCHS = 3
ARCHITECTURES = {
    "eagle3": (),
    "dflash": ("--block-size", "4", "--max-anchors", "32"),
}
SENTENCES = {
    "zeros": r"Hidden states refused: all \d+ rows are zero in every layer",
    "shifted": r"Hidden states refused: row 0 \(token \d+\) of \d+ is another one than",
}


@dataclass(frozen=True)
class Workplace:
    """A server with a tiny GDN hybrid, and a data set prepared by it."""

    server: Server
    folder: Path

    def train(
        self, name: str, kind: str, data: str, url: str, on_missing: str
    ) -> dict[str, object]:
        argv = [
            *("train", "--speculator-type", kind, *ARCHITECTURES[kind]),
            *("--verifier-name-or-path", str(self.server.model)),
            *("--data-path", str(self.folder / data), "--on-missing", on_missing),
            *("--vllm-endpoint", f"{url}/v1", "--max-retries", "0"),
            *("--save-path", str(self.folder / "checkpoints" / name)),
            *("--epochs", str(EPOCHS), "--lr", "1e-3", "--num-layers", "1"),
            *("--total-seq-len", "256", "--num-workers", "0"),
            *("--hidden-states-dtype", "float32", "--draft-attn-impl", "eager"),
            *("--loss-implementation", "eager", "--log-freq", "100"),
            *("--target-layer-ids", *LAYER_IDS),
        ]
        return {"name": name, "argv": argv}

    def prepare(self) -> dict[str, object]:
        conversations = self.folder / "conversations.jsonl"
        made_up = subprocess.run(
            [python_of("speculators-0.9.0"), EXAMPLES / "made_up_conversations.py"],
            capture_output=True,
            text=True,
            check=True,
        )
        conversations.write_text(made_up.stdout)
        argv = [
            *("prepare-data", "--model", str(self.server.model)),
            *("--data", str(conversations), "--render-endpoint", self.server.url),
            *("--output", str(self.folder / "data"), "--seq-length", "256"),
            *("--num-preprocessing-workers", "1"),
        ]
        return {"name": "prepare", "argv": argv}

    def generate(self) -> dict[str, object]:
        argv = [
            *("generate-offline-data", "--model", str(self.server.model)),
            *("--endpoint", f"{self.server.url}/v1", "--concurrency", "4"),
            *("--preprocessed-data", str(self.folder / "data"), "--validate-outputs"),
            *("--output", str(self.folder / "cached")),
        ]
        return {"name": "generate", "argv": argv}

    def with_cache(self, name: str, change: Callable | None = None) -> str:
        """A copy of the data set whose states are saved, spoilt by ``change``."""
        shutil.copytree(self.folder / "data", self.folder / name)
        cache = self.folder / name / "hidden_states"
        shutil.copytree(self.folder / "cached", cache)
        for path in cache.glob("hs_*.safetensors") if change else ():
            spoil(path, change)
        return name


def run(runs: Sequence[dict[str, object]], **variables: str) -> dict[str, dict]:
    """What came out of ``runs``, by name; see speculators_runs.py."""
    done = subprocess.run(
        [python_of("speculators-0.9.0"), str(HERE / "speculators_runs.py")],
        input=json.dumps({"examples": str(EXAMPLES), "runs": list(runs)}),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=environment(**variables),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0 and lines, done.stdout[-3000:] + done.stderr[-6000:]
    found: dict[str, dict] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


@pytest.fixture(scope="module")
def place(tiny, tmp_path_factory) -> Iterator[Workplace]:
    folder = tmp_path_factory.mktemp("training")
    model = tiny("qwen3_5")
    command = [
        *(python_of("vllm-0.32.0"), "-m", "specshim.launch_vllm", str(model)),
        *("--hidden-states-path", str(folder / "hs")),
        *("--target-layer-ids", *LAYER_IDS),
        *("--", "--max-model-len", "512", "--enforce-eager", "--enable-scale-out"),
    ]
    with serve(command, model, folder) as server:
        yield Workplace(server, folder)


@pytest.fixture(scope="module")
def trained(place: Workplace) -> dict[str, dict]:
    """Both drafters, online and from saved states; then online on spoilt states."""
    url = place.server.url
    found = run(
        [
            place.prepare(),
            *(
                place.train(f"{kind}-online", kind, "data", url, "generate")
                for kind in ARCHITECTURES
            ),
            place.generate(),
        ]
    )
    assert found["prepare"]["error"] is None and found["generate"]["error"] is None
    place.with_cache("saved")
    for name in ("zeros", "shifted"):
        place.with_cache(f"saved-{name}", CORRUPTIONS[name])
    with (
        corrupting(url, CORRUPTIONS["zeros"]) as zeros,
        corrupting(url, CORRUPTIONS["shifted"]) as shifted,
    ):
        spoilt = {"zeros": zeros, "shifted": shifted}
        more = [
            *(
                place.train(f"{kind}-saved", kind, "saved", url, "raise")
                for kind in ARCHITECTURES
            ),
            *(
                place.train(f"{name}-online", "eagle3", "data", proxy, "generate")
                for name, proxy in spoilt.items()
            ),
            *(
                place.train(f"{name}-saved", "eagle3", f"saved-{name}", url, "raise")
                for name in spoilt
            ),
        ]
        found |= run(more)
        alone = run([job for job in more if "zeros" in job["name"]], SPECSHIM="0")
    return found | {f"{name}-stock": result for name, result in alone.items()}


@pytest.mark.parametrize("how", ["online", "saved"])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_drafters_are_trained(trained, place, kind: str, how: str) -> None:
    result = trained[f"{kind}-{how}"]
    assert result["error"] is None
    assert len(result["losses"]) == EPOCHS
    assert all(map(math.isfinite, result["losses"]))
    checkpoint = place.folder / "checkpoints" / f"{kind}-{how}" / str(EPOCHS - 1)
    assert (checkpoint / "model.safetensors").stat().st_size > 100_000
    assert json.loads((checkpoint / "config.json").read_text())


@pytest.mark.parametrize("how", ["online", "saved"])
def test_the_loss_goes_down(trained, how: str) -> None:
    """EAGLE-3's: it sees the token that a state led to. DFlash drafts a block ahead, in
    which random words leave nothing to learn."""
    first, *_, last = trained[f"eagle3-{how}"]["losses"]
    assert last < 0.95 * first


def test_both_roads_give_the_same_drafter(trained) -> None:
    online, saved = (trained[f"eagle3-{how}"]["losses"] for how in ("online", "saved"))
    assert online == pytest.approx(saved, rel=0.02)


@pytest.mark.parametrize("how", ["online", "saved"])
@pytest.mark.parametrize("what", SENTENCES)
def test_spoilt_states_end_the_run(trained, what: str, how: str) -> None:
    error = trained[f"{what}-{how}"]["error"]
    assert error is not None, trained[f"{what}-{how}"]
    assert re.search(SENTENCES[what], error), error


@pytest.mark.parametrize("how", ["online", "saved"])
def test_without_specshim_they_are_trained_on(trained, how: str) -> None:
    result = trained[f"zeros-{how}-stock"]
    assert result["error"] is None
    assert len(result["losses"]) == EPOCHS


def test_nothing_is_left_on_the_server(trained, place: Workplace) -> None:
    assert place.server.leftovers() == []
