"""Whatever bytes a file holds, the guard takes it, refuses it, or cannot open it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from sample_values import IDS, sample

from specshim import guard
from specshim._sample_identity import contradiction, doubt, layer_ids_of, names_of
from specshim._trainer import check_served_sample

STATES, TOKENS = sample(tokens=12, hidden=16)
LABELS = {"model": "org/m", "layer_ids": json.dumps(IDS), "num_tokens": "12"}
WHOLE = save({"hidden_states": STATES, "token_ids": TOKENS}, LABELS)
EXPECTED = guard.Expected("org/m", layer_ids=IDS)
DEEP = "[" * 20_000

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
TYPES = st.sampled_from(
    """F64 F32 F16 BF16 I64 I32 I8 U8 BOOL F8_E4M3 F8_E5M2 F8_E8M0 F4 C64 U16 U64
    x""".split()
)
SIZE = st.integers(0, 20) | st.sampled_from([2**31, 2**40, 2**63, 2**64, -1])
TENSOR = st.fixed_dictionaries(
    {
        "dtype": TYPES | JSON,
        "shape": st.lists(SIZE, max_size=4) | JSON,
        "data_offsets": st.lists(SIZE, min_size=2, max_size=2) | JSON,
    }
)
HEADER = st.dictionaries(
    st.sampled_from(["hidden_states", "token_ids", "__metadata__", "x"]),
    TENSOR | JSON,
    max_size=4,
).map(lambda header: json.dumps(header).encode())


def file_of(header: bytes, data: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if size is None else size) + header + data


FILES = st.one_of(
    st.binary(max_size=64),
    st.builds(file_of, HEADER, st.binary(max_size=300)),
    st.builds(file_of, st.just(WHOLE[8:400]), st.just(b""), st.integers(0, 2**64 - 1)),
    st.integers(0, len(WHOLE)).map(lambda end: WHOLE[:end]),
    st.builds(  # some bytes changed
        lambda place, new: WHOLE[:place] + new + WHOLE[place + len(new) :],
        st.integers(0, len(WHOLE)),
        st.binary(min_size=1, max_size=8),
    ),
    st.sampled_from(
        [
            file_of(DEEP.encode(), b""),
            file_of(b'{"__metadata__":' + DEEP.encode(), b""),
            file_of(json.dumps({"__metadata__": {"layer_ids": DEEP}}).encode(), b""),
        ]
    ),
)


@settings(
    max_examples=max(400, settings.default.max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(FILES)
def test_any_file(tmp_path: Path, content: bytes):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    metadata = guard.read_metadata(path)
    assert all(isinstance(text, str) for pair in metadata.items() for text in pair)
    try:
        guard.check_file(path, prompt=TOKENS.tolist(), expected=EXPECTED)
    except guard.BadSample as error:
        assert str(error).startswith("Hidden states refused: ")


def test_the_whole_file_is_taken(tmp_path):
    (tmp_path / "a").write_bytes(WHOLE)
    guard.check_file(tmp_path / "a", prompt=TOKENS.tolist(), expected=EXPECTED)


@given(
    st.dictionaries(
        st.sampled_from(["model", "layer_ids", "served_model_name"]),
        st.text(max_size=20) | JSON.map(json.dumps) | st.just(DEEP) | JSON,
    )
)
def test_any_label(metadata: dict[str, Any]):
    names_of(metadata)
    layer_ids_of(metadata)
    for found in (contradiction(metadata, "org/m", IDS), doubt(metadata, "org/m")):
        assert found is None or isinstance(found, str)


def test_an_empty_tensor_of_many_layers_costs_no_memory():
    states = torch.empty(0, 2**40, 8)
    with pytest.raises(guard.BadSample, match="holds nothing"):
        check_served_sample({"hidden_states": states, "token_ids": torch.empty(0)}, [])


SIZES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "C64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
}


@pytest.mark.parametrize("kind", [*SIZES, "F4", "x"])
@pytest.mark.parametrize("name", ["hidden_states", "token_ids"])
def test_any_type(tmp_path, name, kind):
    tensors = {}
    end = 0
    for tensor, shape in (("hidden_states", [2, 4, 16]), ("token_ids", [2])):
        count = 128 if tensor == "hidden_states" else 2
        its = kind if tensor == name else {128: "F32", 2: "I64"}[count]
        start, end = end, end + count * SIZES.get(its, 1)
        tensors[tensor] = {"dtype": its, "shape": shape, "data_offsets": [start, end]}
    header = json.dumps(tensors).encode()
    header = header.ljust(-(-len(header) // 8) * 8)
    (tmp_path / "a").write_bytes(file_of(header, bytes(end)))
    with pytest.raises(guard.BadSample, match="Hidden states refused"):
        guard.check_file(tmp_path / "a", prompt=[3, 4])
