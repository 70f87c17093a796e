"""Specs of model families and vLLM's own planning of them, for checks in its env."""

import os
import tempfile
from copy import deepcopy
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from stock_server import stock_arguments
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core import kv_cache_utils as utils
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

from specshim._kv_groups import planning

BF16 = torch.bfloat16
HIDDEN = "cache_only_layers.99"


@cache
def _engine_config() -> Any:
    arguments = stock_arguments(Path(tempfile.mkdtemp()))
    transfer = KVTransferConfig(**arguments.pop("kv_transfer_config"))
    engine_args = EngineArgs(
        kv_transfer_config=transfer, enable_chunked_prefill=False, **arguments
    )
    return engine_args.create_engine_config()


def config(
    length: int = 4096, block: int = 16, layout: str = "LBNHC", budget: int = 0
) -> Any:
    """The configuration of a server that extracts, for prompts up to ``length``.

    With a ``budget`` it computes prompts in chunks of that many tokens. Prefixes are
    cached, Mamba states at block boundaries.
    """
    made = deepcopy(_engine_config())
    made.model_config.max_model_len = length
    made.scheduler_config.max_num_batched_tokens = budget or length
    made.scheduler_config.max_num_scheduled_tokens = budget or length
    made.scheduler_config.enable_chunked_prefill = bool(budget)
    made.cache_config.enable_prefix_caching = True
    made.cache_config.block_size = block
    made.cache_config.mamba_cache_mode = "align"
    if hasattr(made.cache_config, "kv_cache_layout"):  # from 0.29, else resolved later
        made.cache_config.kv_cache_layout = layout
    return made


def hidden(layers: int, size: int, block: int = 16) -> dict[str, Any]:
    """The layer that keeps ``layers`` states of ``size`` for each token."""
    spec = HiddenStateCacheSpec(
        block_size=block, num_kv_heads=layers, head_size=size, dtype=BF16
    )
    return {HIDDEN: spec}


def full(block: int = 16, heads: int = 1, size: int = 128) -> Any:
    return FullAttentionSpec(
        block_size=block, num_kv_heads=heads, head_size=size, dtype=BF16
    )


def sliding(block: int = 16, heads: int = 1, size: int = 128) -> Any:
    return SlidingWindowSpec(
        block_size=block,
        num_kv_heads=heads,
        head_size=size,
        dtype=BF16,
        sliding_window=1024,
    )


def latent(block: int = 16) -> Any:
    return MLAAttentionSpec(
        block_size=block,
        num_kv_heads=1,
        head_size=576,
        dtype=BF16,
        cache_dtype_str="auto",
    )


def mamba(
    state: int, block: int, padded: int | None = None, mode: str = "align"
) -> Any:
    """A layer with ``state`` bytes per state, in pages of ``padded`` bytes."""
    return MambaSpec(
        block_size=block,
        shapes=((state // 4,),),
        dtypes=(torch.float32,),
        page_size_padded=padded,
        mamba_cache_mode=mode,
    )


def every(period: int, count: int, rare: Any, common: Any) -> dict[str, Any]:
    """``count`` layers, each ``period``-th of them ``rare``, the others ``common``."""
    return {
        f"layers.{i}": rare if i % period == period - 1 else common
        for i in range(count)
    }


def packed(window: int | None, block: int, size: int, **more: Any) -> Any:
    """A layer of DeepSeek-V4: latent attention, or over a sliding ``window``."""
    kind = SlidingWindowMLASpec if window else MLAAttentionSpec
    names = {field.name for field in fields(kind)}
    if "tokens_per_state" in names:  # from 0.29
        more["tokens_per_state"] = more.pop("compress_ratio", 1)
        if more.get("model_version"):
            more["state_content_bytes"] = 584
    if window:
        more["sliding_window"] = window
    return kind(block_size=block, num_kv_heads=1, head_size=size, alignment=576, **more)


def deepseek_v4_flash() -> dict[str, Any]:
    """43 layers as DeepSeek-V4-Flash has them: pages of several sizes, FP8."""
    fp8 = {
        "dtype": torch.uint8,
        "cache_dtype_str": "fp8_ds_mla",
        "model_version": "deepseek_v4",
    }
    state = {"dtype": torch.float32}
    indexer = {"dtype": torch.uint8, "compress_ratio": 4}
    specs: dict[str, Any] = {}
    for i in range(43):
        specs[f"{i}.swa"] = packed(128, 64, 512, **fp8)
        if i < 2:
            continue
        ratio = 4 if i % 2 == 0 else 128
        specs[f"{i}.mla"] = packed(None, 256, 512, compress_ratio=ratio, **fp8)
        if ratio == 4:
            specs[f"{i}.indexer"] = packed(None, 256, 132, **indexer)
            specs[f"{i}.state"] = packed(8, 4, 2048, **state)
            specs[f"{i}.indexer_state"] = packed(8, 4, 512, **state)
        else:
            specs[f"{i}.state"] = packed(128, 8, 1024, **state)
    return specs


def groups(made: Any, specs: dict[str, Any]) -> list[Any]:
    """vLLM's groups; the specs are copied, since some releases pad them in place."""
    copies = {name: replace(spec) for name, spec in specs.items()}
    return list(planning().get_kv_cache_groups(made, copies))


def table(found: list[Any]) -> list[tuple[int, str, int, int]]:
    """Layers, kind, tokens and bytes of a page, for each group."""
    return [
        (
            len(group.layer_names),
            type(group.kv_cache_spec).__name__,
            group.kv_cache_spec.block_size,
            group.kv_cache_spec.page_size_bytes,
        )
        for group in found
    ]


def gib(made: Any, found: list[Any]) -> float:
    """What vLLM wants to have for one request of the full length, in GiB."""
    count = planning()._max_memory_usage_bytes_from_groups
    return float(count(*_builder(made), made, found)) / 2**30


def _builder(made: Any) -> tuple[Any, ...]:
    """From 0.33, the platform's part in planning, a first argument."""
    try:
        from vllm.v1.core.kv_cache_config_builder import get_kv_cache_config_builder
    except ImportError:
        return ()
    return (get_kv_cache_config_builder(made),)


def _plan(made: Any, specs: dict[str, Any], memory: int) -> Any:
    """What a single worker with that many bytes is told; from 0.33 in two steps."""
    plan = planning()
    more = []
    if hasattr(plan, "get_global_kv_cache_groups"):
        more = [plan.get_global_kv_cache_groups(made, [specs])]
    return plan.get_kv_cache_configs(made, [specs], [memory], *more)[0]


class Planned:
    """vLLM's own plan: the worker's part, the scheduler's part, and a scheduler."""

    def __init__(self, made: Any, specs: dict[str, Any], memory: int) -> None:
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.structured_output import StructuredOutputManager

        copies = {name: replace(spec) for name, spec in specs.items()}
        self.worker = _plan(made, copies, memory)
        self.plan = utils.generate_scheduler_kv_cache_config([self.worker])
        made.cache_config.num_gpu_blocks = self.plan.num_blocks
        self.sizes = utils.resolve_kv_cache_block_sizes(self.plan, made)
        self.config = made
        self.scheduler = Scheduler(
            made,
            self.plan,
            StructuredOutputManager(made),
            block_size=self.sizes[0],
            hash_block_size=self.sizes[1],
        )

    @property
    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def submit(self, tokens: int) -> Any:
        """A waiting request with that many prompt tokens, no two alike."""
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.request import Request

        utils.init_none_hash(sha256)
        request = Request(
            "one",
            list(range(tokens)),
            SamplingParams(max_tokens=1),
            None,
            block_hasher=utils.get_request_block_hasher(self.sizes[1], sha256),
        )
        self.scheduler.add_request(request)
        return request

    def takes(self, tokens: int) -> list[int]:
        """Blocks by group that a prompt has in the end; aborted, it frees them all."""
        from vllm.v1.request import RequestStatus

        free = self.free_blocks
        request = self.submit(tokens)
        while request.num_computed_tokens < tokens:
            assert self.scheduler.schedule().num_scheduled_tokens, "nothing scheduled"
        blocks = self.scheduler.kv_cache_manager.get_block_ids("one")
        self.scheduler.connector.request_finished_all_groups = lambda *_: (False, None)
        self.scheduler.finish_requests("one", RequestStatus.FINISHED_ABORTED)
        assert self.free_blocks == free, (self.free_blocks, free)
        return [len(set(ids) - {0}) for ids in blocks]

    def wrong_states(self, tokens: int) -> list[tuple[int, int]]:
        """Mamba states stored under the hash of more tokens than they have seen.

        Pairs of tokens seen and tokens hashed, for a prompt computed chunk by chunk.
        """
        request = self.submit(tokens)
        ends, wrong = [], set()
        managers = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        while request.num_computed_tokens < tokens:
            self.scheduler.schedule()
            ends.append(request.num_computed_tokens)
            for manager in managers:
                if not isinstance(manager.kv_cache_spec, MambaSpec):
                    continue
                hashes = utils.BlockHashListWithBlockSize(
                    request.block_hashes, self.sizes[1], manager.block_size
                )
                for i, block in enumerate(manager.req_to_blocks["one"][: len(hashes)]):
                    upto = (i + 1) * manager.block_size
                    key = block.block_hash
                    whole = key is not None and utils.get_block_hash(key) == hashes[i]
                    if whole and upto not in ends:
                        wrong.add((max(end for end in ends if end <= upto), upto))
        return sorted(wrong)

    def hidden_groups(self) -> list[tuple[int, int]]:
        """Group and block size that the stock connector's halves find (from 0.25)."""
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (  # noqa: E501
            ExampleHiddenStatesConnector as Connector,
        )

        halves = (
            self.scheduler.connector,
            Connector(self.config, KVConnectorRole.WORKER, self.worker),
        )
        return [(half._cache_kv_group_id, half._block_size) for half in halves]
