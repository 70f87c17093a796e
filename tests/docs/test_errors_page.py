"""docs/errors.md quotes messages as the code that says them has them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from message_corpus import missing, pieces, sentences

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "errors.md").read_text()
QUOTED = re.findall(r"```text\n(.+?)\n```\n\n<!-- in: (.+?) -->", PAGE, re.DOTALL)
UPSTREAM = [quoted for quoted in QUOTED if quoted[1] not in ("specshim", "seen")]


@functools.cache
def corpus_of(source: Path) -> list[str]:
    return list(sentences(source))


def test_every_message_says_where_it_is_from():
    assert PAGE.count("```text") == len(QUOTED) > 40
    assert all(pieces(message) for message, _ in QUOTED)


def test_ours_are_said_by_our_code():
    folders = (ROOT / "specshim", ROOT / "patches")
    corpus = list(sentences(*(p for folder in folders for p in folder.rglob("*.py"))))
    ours = [message for message, place in QUOTED if place == "specshim"]
    assert len(ours) > 15
    for message in ours:
        assert not missing(message, corpus), message


@pytest.mark.envs
@pytest.mark.parametrize(("message", "place"), UPSTREAM)
def test_upstreams_are_said_by_that_release(
    environment: Callable, message: str, place: str
):
    release, path = place.split()
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    root = Path(environment(release).evaluate(code))
    assert not missing(message, corpus_of(root / path))


def test_patches_that_it_names_exist():
    from specshim.patching.catalogue import everything

    named = set(re.findall(r"\(patches\.md#([\w-]+)\)", PAGE))
    assert len(named) > 15
    assert named <= {patch.id for patch in everything()}
