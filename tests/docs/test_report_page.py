"""The page of ``specshim verify --report``: complete by itself, seen in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import OPTIONS, chromium

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from specshim.reference import PromptStates
from specshim.verification import charts
from specshim.verification.about import section, write_page
from specshim.verification.collect import Sample
from specshim.verification.compare import compare
from specshim.verification.heat import MOST_CELLS, heat_map
from specshim.verification.page import render_page
from specshim.verification.report import VerifyReport, diagnosis
from specshim.verify import page_problem, write_report

IDS = (0, 2, 4)
CONFIG = Path(__file__).parent.parent / "data" / "configs" / "qwen3.5-27b.json"
ZEROED = slice(10, 20)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "<b>&co"
    folder.mkdir()
    shutil.copy(CONFIG, folder / "config.json")
    return folder


def report(model: Path, *, fault: bool, lengths: tuple[int, ...] = (40, 25)):
    torch.manual_seed(0)
    exact, samples = [], []
    for index, rows in enumerate(lengths):
        ids = tuple(range(rows))
        stream = torch.randn(5, rows, 16).cumsum(0)
        exact.append(PromptStates(token_ids=ids, stream=stream, post_norm=None))
        states = stream[list(IDS)].transpose(0, 1)
        states = states * (1 + 3e-7 * torch.randn_like(states))
        if fault and index == 0:
            states[ZEROED, 1] = 0
        samples.append(Sample(index, ids, ids, states, "float32"))
    comparison = compare(samples, IDS, exact)
    return VerifyReport(
        status=comparison.status,
        url="http://localhost:8000",
        model=str(model),
        prompts=len(lengths),
        seed=0,
        answered=len(lengths),
        layer_ids=IDS,
        metadata={"vllm": "0.24.0", "route": "tap", "specshim": "0.1"},
        comparison=comparison,
        diagnosis=diagnosis(comparison.findings),
    )


class Tags(HTMLParser):
    VOID = ("meta", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    assert write_page(path, [report(model, fault=True)]) is None
    text = path.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    names = {tag for tag, _ in tags.seen}
    assert not names & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"url\(|@import|(?:src|href)=", text)
    assert "<b>&co" not in text and "&lt;b&gt;&amp;co" in text
    for said in (
        "Id 2: rows are zero (10 rows in 1 sample, first: sample 0, row 10).",
        '<div class="verdict wrong">WRONG</div>',
        "Where: the worst sample (prompt 0)",
        "<th>Server&#x27;s vllm</th><td>0.24.0</td>",
        "48 gated_delta_net",
        "TapConnector",
    ):
        assert said in text


def test_the_map_shows_the_rows_that_are_off(model: Path) -> None:
    found = report(model, fault=True).comparison.heat
    assert (found.sample, found.step, found.tokens) == (0, 1, 40)
    assert found.zeros == {(1, token) for token in range(10, 20)}
    assert [len(row) for row in found.errors] == [40] * 3
    assert max(found.errors[0]) < 1e-5 < found.errors[1][10] == pytest.approx(1)
    assert charts.heat(found).count('fill="#000000"') == 10


def test_the_map_is_bounded_and_keeps_the_worst() -> None:
    layers, tokens = 100, 50_000
    errors = [[0.0] * tokens for _ in range(layers)]
    errors[7][33_333] = 0.5
    found = heat_map(0, range(layers), [1.0] * layers, errors, [()] * layers)
    assert sum(map(len, found.errors)) <= MOST_CELLS
    [column] = [c for c, error in enumerate(found.errors[7]) if error]
    first, last = found.tokens_of(column)
    assert first <= 33_333 <= last
    assert found.tokens_of(len(found.errors[0]) - 1)[1] == tokens - 1


def test_colours_change_sides_at_what_is_allowed() -> None:
    assert charts.colour(1.0, 4) == "#2166ac"
    assert charts.colour(1.01, 4).startswith("#fd")
    assert charts.colour(float("inf"), 4) == "#000000"
    assert charts.colour(1e-9, 4) == charts.colour(1e-4, 4)


def test_nothing_to_compare_is_a_page_too() -> None:
    empty = VerifyReport("unclear", "http://x", "m", 3, 0, reason="It is <gone>.")
    text = render_page([section(empty)], "today")
    assert "It is &lt;gone&gt;." in text and "could not tell" in text
    assert "<svg" not in text


def test_a_page_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = VerifyReport("right", "http://x", "m", 3, 0)
    path = tmp_path / "no" / "out.html"
    assert "There is no folder" in (page_problem(path) or "")
    assert page_problem(tmp_path / "out.html") is page_problem(None) is None
    assert write_report(path, [empty], 0) == 2
    assert write_report(path, [empty], 1) == 1  # wrong stays wrong
    assert "cannot be written (No such file" in capsys.readouterr().err
    assert write_report(tmp_path / "out.html", [], 2) == 2
    assert not (tmp_path / "out.html").exists()


def test_a_browser_shows_it(model: Path, tmp_path: Path) -> None:
    width = 800
    page, picture = tmp_path / "out.html", tmp_path / "out.png"
    assert write_page(page, [report(model, fault=True)]) is None
    subprocess.run(
        [
            chromium(),
            *OPTIONS,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},1000",
            f"--screenshot={picture}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    seen = Image.open(picture).convert("RGB")
    assert seen.size == (width, 1000)
    flat = seen.tobytes()
    pixels = [tuple(flat[at : at + 3]) for at in range(0, len(flat), 3)]
    colours = Counter(pixels)
    white = colours[255, 255, 255] / colours.total()
    assert 0.4 < white < 0.97  # there is a page, and it is not blank
    assert colours[tuple(bytes.fromhex("b42318"))] > 1_000  # the verdict
    assert colours[tuple(bytes.fromhex("5b8db8"))] > 500  # bars
    places = (n for n, colour in enumerate(pixels) if colour == (0, 0, 0))
    black = Counter(n % width for n in places)
    # The ten zeroed tokens of forty: one black box, a quarter of the map's width.
    columns = [x for x, count in black.items() if count >= 8]
    assert 0.15 * width < len(columns) < 0.35 * width


def test_json_leaves_the_map_out(model: Path) -> None:
    from specshim.verification.report import to_json

    content = json.dumps(to_json(report(model, fault=False)))
    assert "heat" not in content and '"total"' in content
