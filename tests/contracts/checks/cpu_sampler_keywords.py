"""The sampler of the CPU runner verifies draft tokens, greedily and at random."""

from types import SimpleNamespace

import torch
from vllm.v1.sample import rejection_sampler
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

VOCABULARY = 16


def sample(*, greedy: bool) -> list[list[int]]:
    """Two requests whose draft is the token that has all of the probability."""
    tokens = torch.tensor([3, 5], dtype=torch.int32)
    logits = torch.full((2, VOCABULARY), -1e4)
    logits[[0, 1], tokens.long()] = 0.0
    metadata = SimpleNamespace(
        all_greedy=greedy,
        all_random=not greedy,
        temperature=None if greedy else torch.ones(2),
        generators={},
    )
    result = rejection_sampler.rejection_sample(
        tokens,
        [1, 1],
        1,
        torch.tensor([1, 2], dtype=torch.int32),
        None,
        logits,
        torch.tensor([[7], [8]], dtype=torch.int32),
        metadata,
    )
    return result.tolist()


def main() -> None:
    CPUModelRunner._postprocess_triton(None)  # as the runner does at its start
    assert sample(greedy=True) == [[3, 7], [5, 8]]
    assert sample(greedy=False) == [[3, 7], [5, 8]]


if __name__ == "__main__":
    main()
