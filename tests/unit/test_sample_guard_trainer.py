"""What the guard's patches of speculators share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file
from sample_values import sample

from specshim import _trainer, guard


def drafter(verifier: Path | None = None, **decoder) -> SimpleNamespace:
    named = SimpleNamespace(name_or_path=verifier and str(verifier))
    config = SimpleNamespace(
        eagle_aux_hidden_state_layer_ids=[2, 18, 36],
        transformer_layer_config=SimpleNamespace(**decoder),
        speculators_config=SimpleNamespace(verifier=named),
    )
    return SimpleNamespace(config=config)


def expected(model: SimpleNamespace) -> guard.Expected:
    dataset = SimpleNamespace(model=None)
    _trainer.expect_layers_of(model, dataset)
    return _trainer.expected_by(dataset)


@pytest.mark.parametrize(
    ("tokens", "silent"),
    [
        ({"pad_token_id": 5}, {5}),
        ({"pad_token_id": 5, "eos_token_id": 7, "bos_token_id": 1}, {5}),
        ({"pad_token_id": 5, "eos_token_id": 5}, set()),
        ({"pad_token_id": 5, "eos_token_id": [7, 5]}, set()),
        ({"pad_token_id": 5, "eos_token_id": 7, "bos_token_id": 5}, set()),
        ({"pad_token_id": -1}, set()),
        ({"pad_token_id": None, "eos_token_id": None}, set()),
        ({}, set()),
    ],
    ids=str,
)
def test_padding_is_silent_unless_it_is_text(tokens: dict, silent: set) -> None:
    assert expected(drafter(**tokens)).silent_tokens == silent


def test_the_last_layer_is_that_of_the_verifier(tmp_path: Path) -> None:
    assert expected(drafter()).layer_ids == (2, 18, 36, None)
    assert expected(drafter(tmp_path)).layer_ids == (2, 18, 36, None)
    config = {"model_type": "qwen3", "num_hidden_layers": 36}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert expected(drafter(tmp_path)).layer_ids == (2, 18, 36, 36)


def load(path: Path, leftover: bool = False):
    return _trainer.load_named(load_file, (path,), {}, leftover=leftover)


def written(path: Path, change: Callable | None = None, **header: str) -> Path:
    states, tokens = sample()
    if change:
        change(states)
    save_file({"hidden_states": states, "token_ids": tokens}, path, header or None)
    return path


def twice(states) -> None:
    states[:, 3] = states[:, 1]


def validate(path: Path, leftover: bool = False) -> None:
    with _trainer.removing_leftover():
        data = load(path, leftover)
        _trainer.check_served_sample(data, data["token_ids"].tolist())


def test_layer_ids_of_the_header_count_while_a_sample_is_loaded(tmp_path: Path) -> None:
    path = written(tmp_path / "a", twice, layer_ids="[2, 36, 18, 36]")
    with _trainer.loading(None, guard.Expected()):
        validate(path)
        assert guard.current().layer_ids == (2, 36, 18, 36)
    assert guard.current() == guard.Expected()
    with pytest.raises(guard.BadSample, match="are identical"):
        validate(path)  # nobody is loading: the header is not kept for others
    cached = _trainer.check_cached_header(path, guard.Expected())
    assert cached.layer_ids == (2, 36, 18, 36)


def test_validation_without_a_header_lets_the_last_layer_be_twice(tmp_path) -> None:
    def last(states) -> None:
        states[:, 3] = states[:, 2]

    validate(written(tmp_path / "a", last))
    with pytest.raises(guard.BadSample, match=r"slot 1 of 0\.\.3 and slot 3 of 0\.\.3"):
        validate(written(tmp_path / "a", twice))


@pytest.mark.parametrize("refused_by", ["header", "rows"])
def test_a_refused_served_file_is_removed_where_nobody_else_does(
    tmp_path: Path, refused_by: str
) -> None:
    def bad(name: str) -> Path:
        ids = "[1, 2, 3, 4]" if refused_by == "header" else "[2, 14, 25, 28]"
        (tmp_path / f"{name}.lock").touch()
        return written(tmp_path / name, twice, layer_ids=ids)

    wanted = guard.Expected(layer_ids=(2, 14, 25, None))
    for name, leftover, gone in (
        ("served", True, True),
        ("hs_0.safetensors", True, False),
        ("theirs", False, False),  # 0.8 and newer remove it themselves
    ):
        path = bad(name)
        with _trainer.loading(tmp_path / "hs_0.safetensors", wanted):
            with pytest.raises(guard.BadSample):
                validate(path, leftover)
        assert path.exists() == Path(f"{path}.lock").exists() == (not gone), name


def test_fp8_files_are_told_from_files_without_their_scales(tmp_path: Path) -> None:
    states, tokens = sample()
    data = {
        "hidden_states": states.to(torch.float8_e4m3fn),
        "hidden_states_scales": torch.ones(48, 1, 1),
        "token_ids": tokens,
    }
    with pytest.raises(guard.BadSample, match="which this validation cannot read"):
        _trainer.check_served_sample(data, tokens.tolist())
    del data["hidden_states_scales"]
    with pytest.raises(guard.BadSample, match="without their scales"):
        _trainer.check_served_sample(data, tokens.tolist())


def missing(file_path: Path) -> None:
    """A loader that waits for the lock, removes it and finds no file."""
    Path(f"{file_path}.lock").unlink(missing_ok=True)


def test_the_reason_in_the_lock_file_is_the_error(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    Path(f"{path}.lock").write_text("the disk is full")
    with pytest.raises(FileNotFoundError, match=r"the disk is full: '.*a.safetensors'"):
        _trainer.load_named(missing, (path,), {})
    assert _trainer.load_named(missing, (path,), {}) is None  # nothing is said
    Path(f"{path}.lock").write_text("the disk is full")
    with _trainer.loading(path, guard.Expected()):  # not cached: it is generated
        assert _trainer.load_named(missing, (path,), {}) is None
