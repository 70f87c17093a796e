"""The site of docs/: it builds, needs nothing from elsewhere, and is up to date."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browser import tab

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import generate

ASSETS = {"img": "src", "script": "src", "iframe": "src", "source": "src"}
LINKED = ("stylesheet", "icon", "preconnect", "preload", "modulepreload", "manifest")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="mkdocs-material is not installed (docs)")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", folder]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Assets(HTMLParser):
    """Collects what a browser would load for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ASSETS and ASSETS[tag] in given:
            self.found.append(given[ASSETS[tag]] or "")
        if tag == "link" and set((given.get("rel") or "").split()) & set(LINKED):
            self.found.append(given.get("href") or "")


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]
    assert len(pages) > 15
    for page in pages:
        parser = Assets()
        parser.feed(page.read_text())
        assert parser.found
        for asset in parser.found:
            assert not re.match(r"(\w+:)?//", asset), f"{page.name} loads {asset}"
            place = page.parent / asset.partition("?")[0]
            assert place.is_file(), f"{page.name} lacks {asset}"
    for sheet in site.rglob("*.css"):
        loaded = re.findall(
            r"(?:@import|url\()\s*[\"']?(?:\w+:)?//[^)\"']*", sheet.read_text()
        )
        assert not loaded, sheet


def test_a_message_is_found_by_searching_for_it(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    text = " ".join(entry["text"] for entry in index["docs"])
    for message in (
        "failed to convert the KV cache specs to one unified type",
        "Model does not support EAGLE3 interface",
        "rows are zero in every layer, so none was computed",
    ):
        assert message in text


PASTED = (
    (
        "ValueError: Hybrid KV cache manager is disabled but failed to convert the KV "
        "cache specs to one unified type.",
        "Hybrid KV cache manager is disabled",
    ),
    (
        "RuntimeError: Model does not support EAGLE3 interface but "
        "aux_hidden_state_outputs was requested",
        "Model does not support EAGLE3",
    ),
    (
        "layer id 3 of FooForCausalLM cannot be tapped: at layer 3, it returns a str; "
        "use --specshim-route cache, and please report this model",
        "cannot be tapped",
    ),
    (
        "ValueError: extract_hidden_states is only supported for ['llama', 'qwen'] "
        "models. Got self.target_model_config.hf_text_config.model_type='gemma3_text'",
        "extract_hidden_states is only supported for",
    ),
    (
        "Hidden states refused: all 24 rows are zero in every layer, so none was "
        "computed.",
        "Hidden states refused",
    ),
)


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_a_pasted_message_leads_to_its_cause(address: str, tmp_path: Path) -> None:
    paste = """(() => {
        const field = document.querySelector(".md-search__input");
        const data = new DataTransfer();
        field.focus();
        data.setData("text", %s);
        field.dispatchEvent(new ClipboardEvent(
            "paste", {clipboardData: data, bubbles: true, cancelable: true}));
        return field.value;
    })()"""
    found = "document.querySelector('.md-search-result__item')?.innerText"
    loaded = "JSON.stringify(performance.getEntries().map(entry => entry.name))"
    with tab(tmp_path) as browser:
        for message, heading in PASTED:
            browser.call("Page.navigate", url=f"{address}index.html")
            browser.until("!!document.querySelector('html.js .md-search__input')")
            browser.until("document.readyState === 'complete'")
            assert browser.evaluate(paste % json.dumps(message))
            first = browser.until(found)
            assert "My error says" in first.splitlines()[0], message
            assert heading in first, message
        for name in json.loads(browser.evaluate(loaded)):
            assert "//" not in name or name.startswith(address), f"it loads {name}"


def test_every_page_is_in_the_menu_and_says_its_name(site: Path) -> None:
    listed = set(re.findall(r": ([\w-]+\.md)", (ROOT / "mkdocs.yml").read_text()))
    on_disk = {path.name for path in DOCS.glob("*.md")}
    assert on_disk <= listed
    home = (site / "index.html").read_text()
    assert 'href="quickstart.html"' in home
    assert "docs/quickstart" not in home  # its links are those of the site


@pytest.mark.parametrize("name", generate.PAGES)
def test_generated_parts_are_up_to_date(name: str) -> None:
    page = (DOCS / name).read_text()
    assert generate.render(name, page) == page, "run python docs/generate.py"


def test_links_of_the_repository_lead_somewhere() -> None:
    link = re.compile(r"(?<!\!)\[[^\]]*\]\((?!\w+:|#)([^)#\s]+)")
    sources = [
        *DOCS.glob("*.md"),
        *(ROOT / p for p in ("README.md", "CONTRIBUTING.md")),
    ]
    for source in [*sources, ROOT / "patches" / "README.md"]:
        for target in link.findall(source.read_text()):
            assert (source.parent / target).exists(), f"{source.name}: {target}"
