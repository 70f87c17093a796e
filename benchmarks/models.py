"""Folders with the models of cells.py: a config and a tokenizer, weights if tiny."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.cells import Shape
from specshim.tiny import SPECIAL_TOKENS, TinyModel, ensure_tiny_model, write_processor

_LETTERS = 400
_MARKS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def model_folder(shape: Shape, folder: Path, release: str) -> Path:
    """Made below ``folder`` where it is not there yet."""
    if shape.tiny:
        return ensure_tiny_model(shape.tiny, folder)
    old = bool(shape.old) and shape.is_old(release)
    target = folder / (f"{shape.name}-old" if old else shape.name)
    target.mkdir(parents=True, exist_ok=True)
    config = shape.old if old else shape.config
    (target / "config.json").write_text(json.dumps(config, indent=1))
    marks = {mark: config[field] for field, mark in _MARKS.items() if field in config}
    _write_tokenizer(target, _field(config, "vocab_size"), marks)
    if "vision_config" in config:
        write_processor(target, TinyModel(shape.name, config))
    return target


def _field(config: Mapping[str, Any], name: str) -> Any:
    return config[name] if name in config else config["text_config"][name]


def _write_tokenizer(folder: Path, size: int, marks: Mapping[str, int]) -> None:
    """A word for every id, so that whatever a dummy model answers is a text."""
    special = {name: i for i, name in enumerate(("<unk>", "<s>", "</s>", "<pad>"))}
    special |= marks
    taken = set(special.values())
    words = {f"w{i}": i for i in range(size) if i not in taken}
    # vLLM's server asks models with a vision tower what plain letters are.
    for i, letter in enumerate(map(chr, range(33, 127)), start=_LETTERS):
        del words[f"w{i}"]
        words[letter] = i
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": name, **off, "special": True}
            for name, i in special.items()
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": {**words, **special},
            "unk_token": "<unk>",
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {
        **SPECIAL_TOKENS,
        "model_max_length": 131072,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
