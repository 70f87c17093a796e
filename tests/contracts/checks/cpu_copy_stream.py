"""The connector's worker half saves a sample on the CPU."""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from stock_server import stock_arguments
from vllm.config import KVTransferConfig
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.v1 import (
    example_hidden_states_connector as stock,
)
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.models.extract_hidden_states import CacheOnlyAttentionMetadata

LAYER, TOKENS, LAYERS, HIDDEN, BLOCK = "cache_only_layers.4", 20, 2, 64, 16
SLOTS = torch.arange(2 * BLOCK, 2 * BLOCK + TOKENS)  # blocks 2 and 3


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    arguments = stock_arguments(folder, enable_chunked_prefill=False)
    transfer = KVTransferConfig(**arguments.pop("kv_transfer_config"))
    config = EngineArgs(kv_transfer_config=transfer, **arguments).create_engine_config()
    config.cache_config.block_size = BLOCK
    parallel_state.get_tensor_model_parallel_rank = lambda: 0  # there is no group here
    worker = stock.ExampleHiddenStatesConnector(config, KVConnectorRole.WORKER, None)

    states = torch.randn(TOKENS, LAYERS, HIDDEN)
    cache = torch.zeros(4, BLOCK, LAYERS, HIDDEN)  # a whole block's slots together
    cache.view(-1, LAYERS, HIDDEN)[SLOTS] = states
    save = finish if hasattr(worker, "_submit_async_write") else save_now
    try:
        save(worker, config, cache, folder / "r.safetensors")
    except (RuntimeError, AttributeError) as error:
        said = str(error).splitlines()[0]  # torch's words, or of vLLM's placeholder
        if not any(word in said for word in ("CUDA", "NVIDIA", "_StreamPlaceholder")):
            raise
        raise SystemExit(f"asks for CUDA: {said}") from error

    deadline = time.monotonic() + 10
    while not (folder / "r.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    saved = load_file(folder / "r.safetensors")
    assert torch.equal(saved["hidden_states"], states)
    assert saved["token_ids"].tolist() == list(range(TOKENS))


def finish(worker: Any, config: Any, cache: torch.Tensor, path: Path) -> None:
    """From 0.24: read from the cache when a request has ended."""
    # From 0.29 the axes are [block, layer, slot, hidden].
    swapped = hasattr(worker, "_get_cache_block_size") and "shape[2]" in source()
    worker._kv_cache = cache.transpose(1, 2) if swapped else cache
    pending = stock.PendingSave("r", str(path), torch.arange(TOKENS), [2, 3])
    metadata = stock.ExampleHiddenStatesConnectorMetadata(pending_saves=[pending])
    worker.bind_connector_metadata(metadata)
    assert worker.get_finished({"r"}) == ({"r"}, None)


def save_now(worker: Any, config: Any, cache: torch.Tensor, path: Path) -> None:
    """Up to 0.23: read from the cache in the step that filled it."""
    worker.cache_layers = [LAYER]
    metadata = stock.ExampleHiddenStatesConnectorMetadata()
    metadata.add_request("r", filename=str(path), token_ids=list(range(TOKENS)))
    worker.bind_connector_metadata(metadata)
    with set_forward_context(None, config, slot_mapping={LAYER: SLOTS}):
        worker.save_kv_layer(LAYER, cache, CacheOnlyAttentionMetadata(SLOTS))
    worker.wait_for_save()
    assert worker.get_finished({"r"}) == ({"r"}, None)


def source() -> str:
    import inspect

    return inspect.getsource(stock.extract_from_kv_cache)


if __name__ == "__main__":
    main()
