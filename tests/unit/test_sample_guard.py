"""The guard refuses samples that cannot be right, and says which row and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file
from sample_values import IDS, sample

from specshim import guard

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
LARGE = {"tokens": 700, "hidden": 1024}  # above what is read whole


def refusal(states, tokens, **arguments) -> str:
    with pytest.raises(guard.BadSample) as caught:
        guard.check(states, tokens, **arguments)
    text = str(caught.value)
    assert text.startswith("Hidden states refused: ")
    assert text.endswith(".")
    assert "\n" not in text
    return text


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [{}, LARGE], ids=["small", "large"])
def test_rows_that_were_never_computed(dtype: torch.dtype, size: dict) -> None:
    states, tokens = sample(**size, dtype=dtype)
    guard.check(states, tokens)
    states[17:22] = 0
    assert "row 17 (token 1017) and 4 more of" in refusal(states, tokens)
    assert "are all zero in every layer" in refusal(states, tokens)
    states[:] = 0
    assert f"all {len(states)} rows are zero" in refusal(states, tokens)


def test_one_zero_row_in_one_layer() -> None:
    states, tokens = sample(**LARGE)
    states[699, 2] = 0
    expected = guard.Expected(layer_ids=IDS)
    text = refusal(states, tokens, expected=expected)
    assert "row 699 (token 1699) of 700 is all zero in layer 25" in text
    assert "slot 2 of 0..3" in refusal(states, tokens)


@pytest.mark.parametrize("value", [0.0, 0.5], ids=["zero", "constant"])
@pytest.mark.parametrize("ids", [(2, 18, 33, None), (0, 18, 33, None), None], ids=str)
def test_lost_rows_of_one_token(value: float, ids) -> None:
    """Image placeholders, or the newlines at the end of a prompt."""
    for rows in (slice(10, 266), slice(398, 400), slice(0, 2)):
        states, tokens = sample(400, hidden=2048)
        tokens[rows] = 151_655
        states[rows] = value
        expected = guard.Expected(layer_ids=ids)
        text = refusal(states, tokens, prompt=tokens.tolist(), expected=expected)
        assert f"row {rows.start} (token 151655)" in text


def test_lost_placeholders_of_two_images() -> None:
    states, tokens = sample(400, hidden=256)
    for rows in (slice(10, 110), slice(200, 300)):
        tokens[rows] = 151_655
        states[rows] = 0
    assert "row 10 (token 151655) and 199 more" in refusal(states, tokens)


@pytest.mark.parametrize("ids", [(0, 18, 33, None), (2, 18, 33, 36), None], ids=str)
def test_a_first_slot_that_is_almost_wholly_zero(ids) -> None:
    states, tokens = sample(100, hidden=512)
    states[1:, 0] = 0
    text = refusal(states, tokens, expected=guard.Expected(layer_ids=ids))
    assert "row 1 (token 1001) and 98 more of 100 are all zero in" in text


def test_a_lost_row_of_a_silent_token() -> None:
    states, tokens = sample()
    tokens[20] = 5
    states[20] = 0
    expected = guard.Expected(layer_ids=IDS, silent_tokens=frozenset([5]))
    assert "row 20 (token 5)" in refusal(states, tokens, expected=expected)


def test_negative_zeros_are_zeros() -> None:
    states, tokens = sample()
    states[5] = -0.0
    states[5, :, ::2] = 0.0
    assert "row 5 (token 1005) of 48 is all zero" in refusal(states, tokens)


@pytest.mark.parametrize("value", [0.5, -3.0, 1e-3])
def test_constant_rows(value: float) -> None:
    states, tokens = sample(**LARGE)
    states[30, 1] = value
    text = refusal(states, tokens)
    assert "row 30 (token 1030) of 700 is one value throughout" in text


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("value", "word"), [("nan", "NaN"), ("inf", "infinite"), ("-inf", "infinite")]
)
def test_values_that_are_not_finite(dtype: torch.dtype, value: str, word: str) -> None:
    states, tokens = sample(dtype=dtype)
    states[7, 1, 63] = float(value)
    text = refusal(states, tokens, expected=guard.Expected(layer_ids=IDS))
    assert f"row 7 (token 1007) of 48 has {word} values in layer 14" in text


def test_not_finite_in_a_large_sample() -> None:
    states, tokens = sample(**LARGE)
    row = states.clone()
    row[123, 2:] = float("nan")  # a norm spreads it over the rest of the row
    assert "row 123 (token 1123) of 700" in refusal(row, tokens)
    states[:, -1, 900] *= 300  # a massive activation that overflows now and then
    states[456, -1, 900] = float("inf")
    assert "row 456 (token 1456) of 700" in refusal(states, tokens)


def test_thorough_reads_every_value() -> None:
    states, tokens = sample(**LARGE)
    states[123, 1, 5] = float("nan")
    text = refusal(states, tokens, thorough=True)
    assert "row 123 (token 1123) of 700 has NaN values" in text


@pytest.mark.parametrize("size", [{}, LARGE], ids=["small", "large"])
def test_identical_layers(size: dict) -> None:
    states, tokens = sample(**size)
    states[:, 3] = states[:, 1]
    text = refusal(states, tokens, expected=guard.Expected(layer_ids=IDS))
    assert "layer 14 and layer 28 are identical in every row" in text
    states[:] = states[:, :1]  # one captured layer, broadcast into every slot
    assert "slot 0 of 0..3 and slot 1 of 0..3" in refusal(states, tokens)


@pytest.mark.parametrize(
    ("ids", "pair", "fine"),
    [
        ((2, 18, 36, None), (2, 3), True),  # the server appends the last layer, 36
        ((2, 36, 18, None), (1, 3), True),
        ((2, 18, 36, None), (1, 3), False),
        ((2, 18, 33, 36), (2, 3), False),
        ((None, None, None, None), (2, 3), True),
        ((None, None, None, None), (1, 3), False),
        (None, (2, 3), False),
    ],
)
def test_the_last_layer_requested_twice(ids, pair, fine) -> None:
    states, tokens = sample()
    states[:, pair[1]] = states[:, pair[0]]
    expected = guard.Expected(layer_ids=ids)
    if fine:
        guard.check(states, tokens, expected=expected)
    else:
        assert "are identical" in refusal(states, tokens, expected=expected)


def test_identical_layers_that_were_requested_twice() -> None:
    states, tokens = sample()
    states[:, 3] = states[:, 1]
    guard.check(states, tokens, expected=guard.Expected(layer_ids=(2, 14, 25, 14)))
    guard.check(states, tokens, metadata={"layer_ids": "[2, 14, 25, 14]"})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: (s[0][0], s[1]), "their shape is [4, 64]"),
        (lambda s: (s[0][:-1], s[1]), "they have 47 rows for 48 token ids"),
        (lambda s: (s[0][:0], s[1][:0]), "their shape [0, 4, 64] holds nothing"),
        (lambda s: (s[0][:, :3], s[1]), "they have 3 layers, the trainer expects 4"),
        (lambda s: (s[0][..., :32], s[1]), "their hidden size is 32, the trainer"),
        (lambda s: (s[0].int(), s[1]), "of type int32, which no model's states have"),
        (lambda s: (s[0].float().numpy(), s[1]), "of type ndarray, not a tensor"),
        (lambda s: (s[0], s[1][None]), "their token ids are not a tensor [tokens]"),
        (
            lambda s: (s[0].to(torch.float8_e4m3fn), s[1]),
            "float8_e4m3fn without their scales",
        ),
    ],
)
def test_shapes(change, text: str) -> None:
    expected = guard.Expected(layer_ids=IDS, hidden_size=64)
    assert text in refusal(*change(sample()), expected=expected)


def test_a_header_that_names_more_layers_than_there_are() -> None:
    states, tokens = sample()
    text = refusal(states, tokens, metadata={"layer_ids": "[2, 14, 25, 27, 28]"})
    assert "they have 4 layers, the header names 5" in text


def test_tokens() -> None:
    states, tokens = sample()
    prompt = tokens.tolist()
    guard.check(states, tokens, prompt=prompt)
    prompt[9] = 7
    text = refusal(states, tokens, prompt=prompt)
    assert "row 9 was computed from token 1009, the prompt has 7 there" in text
    assert "48 rows, the prompt has 9 tokens" in refusal(
        states, tokens, prompt=prompt[:9]
    )


def test_layers_side_by_side_are_one_sample() -> None:
    states, tokens = sample(**LARGE)
    guard.check([states[:, :-1], states[:, -1:]], tokens)
    states[30, 3] = 0
    pieces = [states[:, :-1].contiguous(), states[:, -1:]]
    assert "slot 3 of 0..3" in refusal(pieces, tokens)
    pieces[1] = pieces[0][:, 1:2]
    assert "slot 1 of 0..3 and slot 3 of 0..3" in refusal(pieces, tokens)


def test_files(tmp_path: Path) -> None:
    states, tokens = sample()
    path = tmp_path / "hs_0.safetensors"
    metadata = {"model": "Qwen/Qwen3-8B", "layer_ids": json.dumps(IDS)}
    save_file({"hidden_states": states, "token_ids": tokens}, path, metadata)
    assert guard.read_metadata(path) == metadata
    expected = guard.Expected("Qwen/Qwen3-8B", (*IDS[:3], None))
    guard.check_file(path, prompt=tokens.tolist(), expected=expected)
    with guard.expecting(guard.Expected("Qwen/Qwen3-8B-Base")):
        with pytest.raises(guard.BadSample, match=r"states of Qwen/Qwen3-8B, the tr"):
            guard.check_file(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(guard.BadSample, match="is damaged"):
        guard.check_file(path)
    assert guard.read_metadata(path) == metadata
    path.write_bytes(b"no safetensors")
    assert guard.read_metadata(path) == {}


@pytest.mark.parametrize(
    ("found", "wanted", "text"),
    [
        ("[2, 14, 25, 28]", (2, 14, 26, None), "layers 2, 14, 25, 28, the trainer"),
        ("[2, 14, 25]", (2, 14, None, None), "expects 2, 14, any, any"),
        ("[2, 14, 25, 28]", (2, 14, 25, None), None),
        ("[2, 14, 25, 28]", None, None),
        ("broken", (1, 2), None),
        ('{"2": 1}', (1, 2), None),
    ],
)
def test_layer_ids_of_the_header(found, wanted, text) -> None:
    expected = guard.Expected(layer_ids=wanted)
    if text is None:
        guard.check_metadata({"layer_ids": found}, expected)
        return
    with pytest.raises(guard.BadSample, match=text):
        guard.check_metadata({"layer_ids": found}, expected)


@pytest.mark.parametrize(
    ("found", "wanted", "refused"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-4B", True),
        ("Qwen/Qwen3-8B", "qwen/qwen3-8b", False),
        ("/data/Qwen3-8B/", "Qwen/Qwen3-8B", False),
        ("/c/models--Qwen--Qwen3-8B/snapshots/ab12", "Qwen/Qwen3-8B", False),
        ("/data/run-17", "Qwen/Qwen3-8B", False),  # may be a copy: nothing can tell
        ("/data/run-17", "/elsewhere/qwen", False),
        ("unsloth/Qwen3-8B", "Qwen/Qwen3-8B", False),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "Qwen/Qwen3-8B", False),
        ("Qwen/Qwen3-8B-AWQ", "Qwen/Qwen3-4B", True),
        ("./qwen", "Qwen/Qwen3-8B", False),
        ("../qwen", "./tuned", False),
        ("{tmp}/one", "{tmp}/two", False),  # may be copies
        ("{tmp}/one", "{tmp}/link", False),
    ],
)
@pytest.mark.filterwarnings("ignore:specshim")
def test_models_of_the_header(found, wanted, refused, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    found, wanted = (name.format(tmp=tmp_path) for name in (found, wanted))
    expected = guard.Expected(wanted)
    if not refused:
        guard.check_metadata({"model": found}, expected)
        return
    with pytest.raises(guard.BadSample, match="the trainer expects"):
        guard.check_metadata({"model": found}, expected)


@pytest.mark.parametrize(
    ("model", "served", "wanted"),
    [
        ("RedHatAI/Qwen3-8B-FP8-dynamic", '["Qwen/Qwen3-8B"]', "Qwen/Qwen3-8B"),
        ("Other/Thing", '["a", "Qwen/Qwen3-8B"]', "Qwen/Qwen3-8B"),
        ("/data/run-17", '["verifier"]', "verifier"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_the_name_that_the_server_gave_will_do(model, served, wanted) -> None:
    metadata = {"model": model, "served_model_name": served}
    guard.check_metadata(metadata, guard.Expected(wanted))


def test_names_that_prove_nothing_are_a_warning() -> None:
    metadata = {"model": "Other/Thing", "served_model_name": '["verifier"]'}
    text = r"states of Other/Thing \(served as verifier\), the trainer expects Qwen"
    with pytest.warns(UserWarning, match=text):
        guard.check_metadata(metadata, guard.Expected("Qwen/Qwen3-8B"))
    for broken in ("{", '{"a": 1}', "[1]"):
        metadata["served_model_name"] = broken
        with pytest.raises(guard.BadSample, match="states of Other/Thing, the trainer"):
            guard.check_metadata(metadata, guard.Expected("Qwen/Qwen3-8B"))
