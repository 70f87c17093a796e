"""Do the states predict the text that they are said to belong to?

The trainer has the target's own head. Put on the last layer's rows, it must name the
next tokens better than those of any other place, and better than on any other layer:
what tells rows of the right values in the wrong order, with a model that has learnt
something. On one that has not, nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from specshim.guard import BadSample

_OFFSETS = (-2, -1, 0, 1, 2, 3)  # of the token that a row's prediction is compared with
_NEXT = 1
_ROWS = 256  # per batch
_ENOUGH = 1024  # rows until it is decided
_BATCHES = 50  # after which it is given up
_CLEAR = 0.25  # of the predictions right, for what is to win
_BEATEN = 0.2  # of that, for what should have won


@dataclass
class _Tally:
    rows: int = 0
    batches: int = 0
    next_right: int = 0
    # Of rows whose token there is not the next one, too: how many, and how many right.
    apart: dict[int, int] = field(default_factory=lambda: dict.fromkeys(_OFFSETS, 0))
    right: dict[int, int] = field(default_factory=lambda: dict.fromkeys(_OFFSETS, 0))
    slots: dict[int, int] = field(default_factory=dict)  # next tokens, by layer slot
    itself: int = 0  # embeddings in which the head sees their own token


def watch(model: Any) -> None:
    """Look at the first batches that ``model``, a drafter in training, is given.

    The hook that it sets raises :class:`~specshim.guard.BadSample` in the training
    process and is gone once it has decided.
    """
    needed = ("verifier_lm_head", "verifier_norm", "embed_tokens")
    if any(getattr(model, name, None) is None for name in needed):
        return
    tally = _Tally()

    def look(module: Any, args: tuple[Any, ...], batch: Mapping[str, Any]) -> None:
        if not module.training:
            return
        tally.batches += 1
        sharded = type(module.verifier_lm_head.weight) not in _WHOLE
        if not sharded and not args and batch.keys() >= _NEEDED:
            with torch.no_grad():
                _count(tally, module, batch)
            problem = verdict(tally)
            if problem:
                handle.remove()
                raise BadSample(f"Hidden states refused: {problem}.")
        if tally.rows >= _ENOUGH or tally.batches >= _BATCHES:
            handle.remove()

    handle = model.register_forward_pre_hook(look, with_kwargs=True)


_NEEDED = {"hidden_states", "input_ids", "verifier_last_hidden_states", "document_ids"}
_WHOLE = (torch.Tensor, torch.nn.Parameter)


def _count(tally: _Tally, model: Any, batch: Mapping[str, Any]) -> None:
    tokens, documents = batch["input_ids"][0], batch["document_ids"][0]
    first, last = -_OFFSETS[0], len(tokens) - _OFFSETS[-1]
    places = torch.arange(first, max(first, last), device=tokens.device)
    whole = documents[places + _OFFSETS[0]] == documents[places + _OFFSETS[-1]]
    places = places[whole & (documents[places] >= 0)]
    if not len(places):
        return
    chosen = torch.linspace(0, len(places) - 1, min(_ROWS, len(places)))
    places = places[chosen.long().to(places.device)]
    following = tokens[places + _NEXT]
    named = _named(model, batch["verifier_last_hidden_states"][0, places])
    tally.rows += len(places)
    tally.next_right += int((named == following).sum())
    for offset in _OFFSETS:
        there = tokens[places + offset]
        apart = there != following
        tally.apart[offset] += int(apart.sum())
        tally.right[offset] += int((apart & (named == there)).sum())
    own = tokens[places]
    tally.itself += int((_named(model, model.embed_tokens(own)) == own).sum())
    states = batch["hidden_states"][0]
    hidden = batch["verifier_last_hidden_states"].shape[-1]
    for slot, layer in enumerate(states.split(hidden, -1)):
        # EAGLE's samples are moved by one against their tokens, others are not.
        found = [
            int((_named(model, layer[places + moved]) == following).sum())
            for moved in (0, -1)
        ]
        tally.slots[slot] = tally.slots.get(slot, 0) + max(found)


def _named(model: Any, rows: torch.Tensor) -> torch.Tensor:
    """The token that the target's head names for each row."""
    head = model.verifier_lm_head
    best = head(model.verifier_norm(rows.to(head.weight.dtype))).argmax(-1)
    offsets = getattr(model, "d2t", None)
    return best if offsets is None else best + offsets[best]


def verdict(tally: _Tally) -> str | None:
    """What is wrong, as the end of a sentence, once enough rows were seen."""
    if tally.rows < _ENOUGH:
        return None
    share = tally.next_right / tally.rows
    for offset in _OFFSETS:
        # A head that sees a token in its embedding sees it in untrained states, too.
        excused = offset == 0 and tally.itself > 0.05 * tally.rows
        if offset == _NEXT or excused or tally.apart[offset] < _ENOUGH // 4:
            continue
        there = tally.right[offset] / tally.apart[offset]
        if there >= _CLEAR and share <= _BEATEN * there:
            by = _NEXT - offset
            return (
                f"the last layer names {there:.0%} of the tokens {_where(offset)} and "
                f"{share:.0%} of the next ones (of {tally.rows} rows), so its rows are "
                f"shifted by {by:+d}"
            )
    for slot, right in tally.slots.items():
        there = right / tally.rows
        if there >= _CLEAR and share <= _BEATEN * there:
            return (
                f"slot {slot} names {there:.0%} of the next tokens and what should be "
                f"the last layer {share:.0%} (of {tally.rows} rows), so the layers are "
                "in another order"
            )
    return None


def _where(offset: int) -> str:
    if offset == 0:
        return "at their own place"
    return f"{abs(offset)} places {'on' if offset > 0 else 'back'}"
