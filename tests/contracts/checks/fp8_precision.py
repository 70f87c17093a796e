"""A massive activation in one layer leaves the others as precise as FP8 can be.

The written scales serve a reader that nothing has patched, too.
"""

import importlib.util
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from hs_connectors import fp8_utils
from hs_connectors.transfer import FP8Transfer


def error(stored: torch.Tensor, states: torch.Tensor) -> float:
    """The worst relative error of a row, [tokens, layers]."""
    off = (stored.float() - states).norm(dim=-1) / states.norm(dim=-1)
    return float(off.max())


def connector_and_transfer(states: torch.Tensor) -> None:
    """From the connector's writer, through the file, to the trainer's reader."""
    from hs_connectors.fp8_hidden_states_connector import FP8HiddenStatesConnector

    folder = Path(tempfile.mkdtemp())
    tensors = {"hidden_states": states, "token_ids": torch.arange(len(states))}
    done = SimpleNamespace(synchronize=lambda: None)  # a CUDA event
    path = str(folder / "hs_0.safetensors")
    FP8HiddenStatesConnector._write_tensors(tensors, done, path, None)
    sample = FP8Transfer(folder, torch.float32).get_cached(0)
    assert sample.keys() == tensors.keys()
    assert error(sample["hidden_states"], states) < 0.05


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(32, 4, 512, generator=generator)
    states[:, 0] *= 0.02  # an early layer
    states[0, 1:, 7] = 20_000.0  # the first token, from the second layer on
    packed, scales = fp8_utils.quantize_tensor_to_fp8(states)
    assert packed.dtype == torch.float8_e4m3fn and packed.shape == states.shape
    plain = packed.to(torch.bfloat16) * scales.to(torch.bfloat16)
    worst = error(plain[:, 0], states[:, 0])
    assert worst < 0.05, f"an unpatched reader is off by {worst:.0%} in the early layer"
    read = fp8_utils.dequantize_fp8_tensor(packed, scales, dtype=torch.float32)
    assert torch.equal(read, packed.float() * scales)
    written_before = states.abs().amax((1, 2), keepdim=True) / 448
    old = (states / written_before).to(torch.float8_e4m3fn)
    exact = (old.float() * written_before).bfloat16()
    assert torch.equal(fp8_utils.dequantize_fp8_tensor(old, written_before), exact)
    if importlib.util.find_spec("vllm"):
        connector_and_transfer(states)
    nothing, _ = fp8_utils.quantize_tensor_to_fp8(torch.zeros(3, 2, 8))
    assert not nothing.float().any()


if __name__ == "__main__":
    main()
