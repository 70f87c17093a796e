"""A real scheduler with the stock connector, for checks inside a vLLM environment."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from stock_request import stock_request

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "torch_dtype": "float32",
}


def stock_arguments(folder: Path, **more: Any) -> dict[str, Any]:
    """EngineArgs of a server that extracts by the stock road; no weights needed."""
    from vllm.model_executor.models import registry

    # To learn of the model, vLLM would import itself again in another process.
    registry._run_in_subprocess = lambda look: look()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "max_model_len": 128,
        **stock_request(folder, [1, 4]),
        **more,
    }


def scheduler(connector: dict[str, Any] | None = None, *, hybrid: bool = True) -> Any:
    """vLLM's scheduler for a dense model, with the hidden states' cache layer.

    ``connector``: the kv_transfer_config, once the engine is configured with stock's.
    ``hybrid``: whether vLLM's hybrid KV cache manager is on, as for stock's.
    """
    import torch
    from vllm import __version__
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
    )
    from vllm.v1.structured_output import StructuredOutputManager

    refuses_chunks = __version__.startswith(("0.22.", "0.23."))
    chunks = {"enable_chunked_prefill": False} if refuses_chunks else {}
    arguments = stock_arguments(
        Path(tempfile.mkdtemp()), enable_prefix_caching=False, **chunks
    )
    transfer = KVTransferConfig(**arguments.pop("kv_transfer_config"))
    engine_args = EngineArgs(kv_transfer_config=transfer, **arguments)
    config = engine_args.create_engine_config()
    if connector is not None:
        config.kv_transfer_config = KVTransferConfig(**connector)
    if not hybrid:
        config.scheduler_config.disable_hybrid_kv_cache_manager = True
    config.cache_config.num_gpu_blocks = 32
    config.cache_config.block_size = 16  # the CPU's own default is 128
    spec = FullAttentionSpec(
        block_size=16, num_kv_heads=2, head_size=16, dtype=torch.float32
    )
    layers = ["model.layers.0.self_attn.attn", "cache_only_layers.4"]
    cache = KVCacheConfig(
        num_blocks=32,
        kv_cache_tensors=[],  # the scheduler counts blocks, it holds no memory
        kv_cache_groups=[KVCacheGroupSpec(layers, spec)],
    )
    return Scheduler(config, cache, StructuredOutputManager(config), block_size=16)
