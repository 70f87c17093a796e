"""On a hybrid model the saved rows are those of the request's own blocks."""

import tempfile
from math import lcm
from pathlib import Path
from typing import Any

import torch
from stock_halves import HIDDEN, LAYER, LAYERS, Engine, fail, rows_of
from stock_server import stock_arguments
from vllm.config import KVTransferConfig, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models.extract_hidden_states import CacheOnlyAttentionLayer
from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, MambaSpec
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 64  # tokens; vLLM raises it until a page of attention holds a Mamba state


def scheduler() -> Any:
    """vLLM's scheduler over the cache groups that it makes for a hybrid model."""
    arguments = stock_arguments(Path(tempfile.mkdtemp()))
    transfer = KVTransferConfig(**arguments.pop("kv_transfer_config"))
    config = EngineArgs(
        kv_transfer_config=transfer, enable_prefix_caching=False, **arguments
    ).create_engine_config()
    config.cache_config.block_size = BLOCK
    config.cache_config.num_gpu_blocks = 32
    with set_current_vllm_config(config):
        states = CacheOnlyAttentionLayer(LAYERS, HIDDEN, prefix=LAYER)
    attention = FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float32
    )
    mamba = MambaSpec(
        block_size=128,
        shapes=((1024,),),
        dtypes=(torch.float32,),
        page_size_padded=attention.page_size_bytes,
    )
    groups = get_kv_cache_groups(
        config,
        {
            "model.layers.0.linear_attn": mamba,
            "model.layers.1.self_attn.attn": attention,
            LAYER: states.get_kv_cache_spec(config),
        },
    )
    cache = KVCacheConfig(num_blocks=32, kv_cache_tensors=[], kv_cache_groups=groups)
    manager = StructuredOutputManager(config)
    common = lcm(*(group.kv_cache_spec.block_size for group in groups))
    return Scheduler(config, cache, manager, block_size=common)


def main() -> None:
    engine = Engine(scheduler())
    assert engine.block_size < BLOCK, "the groups have one block size: nothing to see"
    engine.add("one", tokens=70)
    finished = engine.forward()
    rows = rows_of(engine.blocks("one"), engine.block_size, 70)
    engine.update(finished)
    engine.drain()
    saved = engine.read("one")["hidden_states"][:, 0, 0]
    if not torch.equal(saved, rows):
        wrong = int((saved != rows).sum())
        fail(f"rows of others: {wrong} of 70")


if __name__ == "__main__":
    main()
