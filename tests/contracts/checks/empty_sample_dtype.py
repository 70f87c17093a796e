"""A batch without a good sample has the types of one with good samples."""

import torch
from speculators.train.data import create_collate_fn

HIDDEN = 16


def good(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {
        "hidden_states": torch.ones(4, 3 * HIDDEN, dtype=dtype),
        "input_ids": torch.arange(4),
        "verifier_last_hidden_states": torch.ones(4, HIDDEN, dtype=dtype),
        "loss_mask": torch.ones(4, dtype=torch.long),
        "lengths": torch.tensor([4]),
        "position_ids": torch.arange(4),
    }


def main() -> None:
    collate = create_collate_fn(8, HIDDEN)
    first = collate([None, None])
    assert first["hidden_states"].dtype == torch.bfloat16
    assert first["input_ids"].dtype == torch.long
    assert first["hidden_states"].shape == (1, 8, 3 * HIDDEN)
    for dtype in (torch.float32, torch.bfloat16):
        batch = collate([good(dtype), None])
        empty = collate([None])
        assert {k: v.dtype for k, v in empty.items()} == {
            k: v.dtype for k, v in batch.items()
        }


if __name__ == "__main__":
    main()
