"""Tiny models of real architectures: random weights, a config and a tokenizer on disk.

They load in vLLM and in transformers like any downloaded model; the demo and
the tests compare the two on them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specshim.tiny_architectures import (
    ARCHITECTURES,
    BOS,
    EOS,
    PAD,
    UNK,
    WORDS,
    TinyModel,
)
from specshim.tiny_rows.base import IMAGE, VIDEO, VISION_END, VISION_START

__all__ = [
    "ARCHITECTURES",
    "SPECIAL_TOKENS",
    "TinyModel",
    "TinyModelError",
    "ensure_tiny_model",
    "write_processor",
]

_RECIPE = 4  # counts changes of the weights or the tokenizer made below
_VECTOR_STD = 0.05
_LETTERS = 400  # where they start, in a vocabulary with them

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<s> {{ message['content'] }} </s> "
    "{% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)

_IMAGE_MARKS = {
    IMAGE: "<|image_pad|>",
    VIDEO: "<|video_pad|>",
    VISION_START: "<|vision_start|>",
    VISION_END: "<|vision_end|>",
}
_IMAGE_CHAT_TEMPLATE = (
    "{% for message in messages %}<s> "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %} "
    "{% endfor %}{% endif %} </s> {% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)


SPECIAL_TOKENS: Mapping[str, str] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
}
"""Of tokenizer_config.json: the class that every release knows, and its marks."""


class TinyModelError(Exception):
    """A tiny model cannot be made here; the message is one clear sentence."""


def ensure_tiny_model(
    name: str,
    folder: Path,
    *,
    seed: int = 0,
    on_build: Callable[[str], None] | None = None,
) -> Path:
    """The folder of tiny model ``name`` below ``folder``, made where it is not there.

    The folder's name holds a digest of everything that decides its contents, so
    a complete one is reused and one of another recipe is left alone. Several
    processes may call this at once: each writes a folder of its own and renames.

    Args:
        name: a key of ARCHITECTURES.
        folder: where the model's folder is put; created where missing.
        seed: of the random weights.
        on_build: called with ``name`` before a model is made, not on reuse.

    Raises:
        TinyModelError: unknown name, or torch, transformers, tokenizers or
            the architecture are not there.
    """
    spec = ARCHITECTURES.get(name)
    if spec is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise TinyModelError(f"There is no tiny model named {name!r}; choose {known}.")
    target = folder / f"{name}-{_digest(spec, seed)}"
    if (target / "config.json").is_file():
        return target
    if on_build is not None:
        on_build(name)
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
    try:
        _write_model(spec, draft, seed)
        _write_tokenizer(draft, _IMAGE_MARKS if spec.takes_images else {})
        if spec.takes_images:
            write_processor(draft, spec)
        draft.chmod(0o755)
        try:
            os.rename(draft, target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _digest(spec: TinyModel, seed: int) -> str:
    weights = [spec.embedding_std, dict(spec.scales), seed]
    recipe = [_RECIPE, dict(spec.config), *weights]
    text = json.dumps(recipe, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _write_model(spec: TinyModel, folder: Path, seed: int) -> None:
    try:
        import torch
        from transformers import AutoConfig
    except ImportError as error:
        raise TinyModelError(
            f"Making a tiny model needs torch and transformers, and {error.name} is "
            "not installed in this environment; run this where vLLM is installed."
        ) from error
    # config.json is written by hand: what one transformers release adds to it
    # when saving, another cannot always read.
    config_path = folder / "config.json"
    config_path.write_text(json.dumps(dict(spec.config), indent=2) + "\n")
    try:
        config = AutoConfig.from_pretrained(folder)
        model_class = _model_class(spec.builder or spec.config["architectures"][0])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = model_class(config).to(torch.float32)
            _fill(model, spec)
        model = model.to(getattr(torch, spec.config["dtype"]))
        with quiet_transformers():
            model.save_pretrained(folder)
    except (AttributeError, ImportError, KeyError, ValueError) as error:
        import transformers

        raise TinyModelError(
            f"transformers {transformers.__version__} cannot make the tiny model "
            f"{spec.name!r}: {error}"
        ) from error
    config_path.write_text(json.dumps(dict(spec.config), indent=2) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)


def _model_class(architecture: str) -> Any:
    import transformers

    return getattr(transformers, architecture)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars nor warnings of transformers; its settings are restored."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _fill(model: Any, spec: TinyModel) -> None:
    """Random weights that move the states clearly from layer to layer, and calmly.

    Matrices keep the size of what goes through them (1 / sqrt(fan-in)): larger
    ones saturate attention and routers, and then bfloat16 alone moves single
    rows by half their size, which hides real faults. Time steps, decays and skip
    weights of recurrent layers keep their architecture's own initialisation.
    """
    import torch

    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter is embedding:
                parameter.normal_(0, spec.embedding_std)
            elif parameter.dim() > 1:
                # experts are [experts, out, in], convolutions [channels, 1, width]
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            elif "norm" in name:
                parameter.add_(torch.randn_like(parameter), alpha=_VECTOR_STD)
            elif name.endswith(".bias"):
                parameter.normal_(0, _VECTOR_STD)
            for part, factor in spec.scales.items():
                if part in name:
                    parameter.mul_(factor)


def write_processor(folder: Path, spec: TinyModel) -> None:
    """How Qwen models take an image apart; images of 64 to 256 pixels a side."""
    vision = spec.config["vision_config"]
    common = {
        "processor_class": "Qwen3VLProcessor",
        "patch_size": vision["patch_size"],
        "temporal_patch_size": vision["temporal_patch_size"],
        "merge_size": vision["spatial_merge_size"],
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": 64 * 64, "longest_edge": 256 * 256},
    }
    kinds = {
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessorFast"
        },
        "video_preprocessor_config.json": {
            "video_processor_type": "Qwen3VLVideoProcessor"
        },
    }
    for name, kind in kinds.items():
        (folder / name).write_text(json.dumps({**common, **kind}, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(_IMAGE_CHAT_TEMPLATE)


def _write_tokenizer(folder: Path, marks: Mapping[int, str]) -> None:
    """One word per id ("w0", "w1", ...), special tokens last, a plain chat template.

    ``marks`` are special tokens that stand in the place of words.

    tokenizer_config.json is written by hand, as config.json is: the tokenizer
    class that transformers 5 would name there is unknown to earlier releases.
    """
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers
    except ImportError as error:
        raise TinyModelError(
            "Making a tiny model needs tokenizers, which is not installed in this "
            "environment; run this where vLLM is installed."
        ) from error
    special = {"<unk>": UNK, "<s>": BOS, "</s>": EOS, "<pad>": PAD}
    special |= {mark: i for i, mark in marks.items()}
    words = {f"w{i}": i for i in range(WORDS) if i not in marks}
    if marks:  # vLLM's server asks what plain letters are
        for i, letter in enumerate(map(chr, range(33, 127)), start=_LETTERS):
            del words[f"w{i}"]
            special[letter] = i
    vocabulary = words | special
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([token for token in special if len(token) > 1])
    if marks:  # transformers builds its own tokenizer around the vocabulary for these
        tokenizer.add_tokens(list(words))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        **SPECIAL_TOKENS,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": _IMAGE_CHAT_TEMPLATE if marks else _CHAT_TEMPLATE,
    }
    text = json.dumps(settings, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text)
