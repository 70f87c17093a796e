"""For mkdocs: pages of the site that are files elsewhere in the repository.

Links are written for the repository, where people read on GitHub, and become links of
the site here.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "patches/README.md": "faults.md",
}
"""Where a file of the repository stands on the site; what lies in docs/ stays."""

BOOSTED = {"errors.md": 6}
"""Whoever pastes a message into the search field wants these pages first."""

_LINK = re.compile(r"\[([^\]\n]*)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages whose source lies outside of docs/."""
    for source, place in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Turn the links of the repository into those of the site."""
    sources = {place: source for source, place in PAGES.items()}
    name = page.file.src_uri
    if name in BOOSTED:
        page.meta["search"] = {"boost": BOOSTED[name]}
    return site_links(markdown, sources.get(name, f"docs/{name}"), titles(config.nav))


def titles(nav: Any) -> dict[str, str]:
    """The name of each page in the menu, by its file."""
    found = {}
    for entry in nav:
        for title, below in entry.items():
            found.update(titles(below) if isinstance(below, list) else {below: title})
    return found


def site_links(markdown: str, source: str, names: dict[str, str]) -> str:
    """``markdown`` of the repository's file ``source`` with links as on the site.

    A link that is called like its file gets the name of the page.
    """

    def link(found: re.Match[str]) -> str:
        text, path, anchor = found.groups()
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        place = PAGES.get(target, target.removeprefix("docs/"))
        if text.endswith(".md"):
            text = names.get(place, text)
        return f"[{text}]({place}{anchor or ''})"

    return _LINK.sub(link, markdown)
