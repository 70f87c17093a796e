"""Where a model's config.json is looked for, and what is said where it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specshim.detect import ModelNotFound, detect_model
from specshim.detect.config_file import hub_cache

OLD, NEW = "a" * 40, "b" * 40


def llama(layers: int) -> str:
    return json.dumps(
        {"model_type": "llama", "num_hidden_layers": layers, "hidden_size": 8}
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with two revisions of org/name, laid out as huggingface_hub does."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    repository = tmp_path / "hub" / "models--org--name"
    for commit, layers in ((OLD, 1), (NEW, 2)):
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        blob = repository / "blobs" / commit
        blob.parent.mkdir(exist_ok=True)
        blob.write_text(llama(layers))
        (snapshot / "config.json").symlink_to(blob)
    refs = repository / "refs"
    (refs / "pr").mkdir(parents=True)
    (refs / "main").write_text(NEW)
    (refs / "pr" / "1").write_text(OLD)
    return repository


@pytest.mark.parametrize(
    ("revision", "layers"),
    [(None, 2), ("main", 2), ("refs/pr/1", 0), ("pr/1", 1), (OLD, 1), (NEW, 2)],
)
def test_a_revision_in_the_cache(
    cache: Path, revision: str | None, layers: int
) -> None:
    if not layers:
        with pytest.raises(ModelNotFound, match="at revision 'refs/pr/1'"):
            detect_model("org/name", revision=revision)
        return
    facts = detect_model("org/name", revision=revision)
    assert (facts.name, facts.num_hidden_layers) == ("org/name", layers)
    assert facts.config_path.startswith(str(cache / "snapshots"))


def test_a_revision_that_is_not_cached_names_those_that_are(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"at revision 'v2' \(there is aaaaaaa"):
        detect_model("org/name", revision="v2")


def test_a_revision_cannot_leave_the_cache(cache: Path) -> None:
    (cache.parent / "config.json").write_text(llama(9))
    with pytest.raises(ModelNotFound, match="at revision"):
        detect_model("org/name", revision="../..")


def test_a_snapshot_without_its_blob_is_not_there(cache: Path) -> None:
    (cache / "blobs" / NEW).unlink()
    with pytest.raises(ModelNotFound, match="download it first"):
        detect_model("org/name")


def test_a_local_folder_comes_before_the_cache(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(llama(5))
    assert detect_model("org/name").num_hidden_layers == 5


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HF_HUB_CACHE": "/c"}, "/c"),
        ({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, "/c"),
        ({"HF_HOME": "/h"}, "/h/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": ""}, "~/.cache/huggingface/hub"),
    ],
)
def test_the_cache_folder(variables: dict[str, str], expected: str) -> None:
    assert hub_cache(variables) == Path(expected).expanduser()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff\xfe\xff", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[]", "holds no JSON object"),
        (b"{}", "names no layer count"),
    ],
)
def test_a_damaged_file(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelNotFound, match=message) as caught:
        detect_model(str(tmp_path))
    assert_one_sentence(caught.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("no/such-model", "neither a folder nor in the Hugging Face cache"),
        ("./missing", "There is no folder './missing'"),
        ("/", "has no config.json"),
        ("", "There is no folder ''"),
        ("a/b/c", "There is no folder 'a/b/c'"),
        ("nul\0byte", "usable path|There is no folder"),
        ("x" * 5000, "usable path|neither a folder"),
        ("~nobody-of-that-name/x", "usable path|There is no folder"),
        (__file__, "is a file; give the folder"),
    ],
)
def test_nothing_to_read(cache: Path, model: str, message: str) -> None:
    with pytest.raises(ModelNotFound, match=message) as caught:
        detect_model(model)
    assert_one_sentence(caught.value)


def test_mistrals_own_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    with pytest.raises(ModelNotFound, match=r"params\.json, Mistral's own format"):
        detect_model(str(tmp_path))


def assert_one_sentence(error: ModelNotFound) -> None:
    text = str(error)
    assert text.endswith(".") and "\n" not in text and "Traceback" not in text
