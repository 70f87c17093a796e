"""Steps of a server with the stock connector: vLLM's own parts around one made-up.

Real are the scheduler, both halves of the connector, the proposer with its cache-only
layer, the forward context and the KV tensor. The model is made up: its states say
which token of the vocabulary they belong to, and at which position.
"""

import inspect
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from cpu_streams import do_at_once
from stock_server import stock_arguments

BLOCK = 16
LAYER = "cache_only_layers.4"
OUTPUT = 7  # the token that is always generated


@dataclass
class Server:
    config: Any
    scheduler: Any
    proposer: Any
    kv_cache: torch.Tensor  # [blocks, slots, layers, hidden]
    group: int  # the KV cache group of the hidden states
    block_size: int  # and its tokens per block
    hashed: int  # tokens in a block that is hashed for the prefix cache
    folder: Path
    order: list[str] = field(default_factory=list)  # the persistent batch

    def add(self, name: str, prompt: list[int], max_tokens: int = 1) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher
        from vllm.v1.request import Request

        hasher = get_request_block_hasher(self.hashed, sha256)
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = Request(name, prompt, sampling, None, block_hasher=hasher)
        self.scheduler.add_request(request)

    def saved(self, name: str) -> torch.Tensor:
        """What the file of this request says, one row ``(token, position)`` each."""
        from safetensors.torch import load_file
        from vllm.distributed.kv_transfer.kv_connector.v1 import (
            example_hidden_states_connector as stock,
        )

        load = getattr(stock, "load_hidden_states", load_file)  # 0.22 writes later
        states = load(str(self.folder / f"{name}.safetensors"))["hidden_states"]
        return states[:, 0, :2].float()


def wrong(server: Server, prompts: dict[str, list[int]]) -> list[str]:
    """What is wrong with the files of these prompts, a phrase for each."""
    found = []
    for name, prompt in prompts.items():
        rows = server.saved(name)
        if len(rows) != len(prompt):
            found.append(f"{name}: {len(rows)} rows for {len(prompt)} tokens")
            continue
        own = torch.tensor([(token, i) for i, token in enumerate(prompt)])
        others = (rows != own).any(dim=1).nonzero().flatten().tolist()
        if others:
            found.append(f"{name}: rows {others[0]} to {others[-1]} are not its own")
    return found


def serve(
    folder: Path | None = None,
    *,
    blocks: int = 64,
    sliding_layers: int = 0,
    cache_dtype: str = "auto",
    rank: int = 0,
    port: int = 0,
    **more: Any,
) -> Server:
    """A server of four layers, all with full attention unless told otherwise.

    Args:
        folder: for the model's config and the files.
        blocks: of the KV cache, the null block among them.
        cache_dtype: of the attention layers' cache.
        rank: of this process, where ``more`` has a tensor_parallel_size.
        port: at which the ranks meet.
        more: for EngineArgs.
    """
    from vllm.config import set_current_vllm_config
    from vllm.distributed.kv_transfer import get_kv_transfer_group
    from vllm.distributed.kv_transfer.kv_transfer_state import (
        ensure_kv_transfer_initialized,
        ensure_kv_transfer_shutdown,
    )
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
    from vllm.v1.worker.utils import bind_kv_cache

    do_at_once()
    folder = folder or Path(tempfile.mkdtemp())
    config = _config(folder, **more)
    config.cache_config.num_gpu_blocks_override = blocks
    config.cache_config.cache_dtype = cache_dtype
    ensure_kv_transfer_shutdown()
    with set_current_vllm_config(config):
        _join(config, rank, port)
        proposer, layer = _proposer(config)
        specs = {LAYER: layer.get_kv_cache_spec(config), **_attention(sliding_layers)}
        (cache,) = get_kv_cache_configs(config, [specs], [1 << 30])
        ensure_kv_transfer_initialized(config, cache)
    group = next(
        i for i, g in enumerate(cache.kv_cache_groups) if LAYER in g.layer_names
    )
    size = cache.kv_cache_groups[group].kv_cache_spec.block_size
    config.cache_config.num_gpu_blocks = cache.num_blocks
    kv_cache = torch.zeros(
        (cache.num_blocks, size, layer.num_heads, layer.head_size),
        dtype=layer.kv_cache_torch_dtype,
    )
    known = config.compilation_config.static_forward_context
    bind_kv_cache({LAYER: kv_cache}, known, [])
    get_kv_transfer_group().register_kv_caches({LAYER: kv_cache})
    scheduler, hashed = _scheduler(config, cache)
    return Server(config, scheduler, proposer, kv_cache, group, size, hashed, folder)


def _config(folder: Path, **more: Any) -> Any:
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    arguments = stock_arguments(folder, block_size=BLOCK, **more)
    transfer = KVTransferConfig(**arguments.pop("kv_transfer_config"))
    return EngineArgs(kv_transfer_config=transfer, **arguments).create_engine_config()


def _join(config: Any, rank: int, port: int) -> None:
    from vllm.distributed.parallel_state import (
        ensure_model_parallel_initialized,
        init_distributed_environment,
    )
    from vllm.utils.network_utils import get_open_port

    world = config.parallel_config.tensor_parallel_size
    port = port or get_open_port()
    where = f"tcp://127.0.0.1:{port}"
    os.environ["VLLM_DIST_IDENT"] = str(port)  # the ranks of a group on the CPU
    init_distributed_environment(world, rank, where, 0, backend="gloo")
    ensure_model_parallel_initialized(world, 1)
    sys.excepthook = sys.__excepthook__  # torch puts "[rank0]" before every line


def _proposer(config: Any) -> tuple[Any, Any]:
    from vllm.model_executor.models.extract_hidden_states import (
        ExtractHiddenStatesModel,
    )
    from vllm.v1.spec_decode.extract_hidden_states import ExtractHiddenStatesProposer

    proposer = ExtractHiddenStatesProposer(config, torch.device("cpu"))
    proposer.model = ExtractHiddenStatesModel(vllm_config=config)
    layer = proposer.model.cache_only_layers["4"]
    proposer.attn_layer_names = [LAYER]
    proposer.attn_metadata_builder = proposer._build_attn_metadata_builder(
        {LAYER: layer}
    )
    return proposer, layer


def _scheduler(config: Any, cache: Any) -> tuple[Any, int]:
    """The scheduler, and the number of tokens in a block that is hashed."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.structured_output import StructuredOutputManager

    kv_cache_utils.init_none_hash(sha256)
    sizes = {"block_size": BLOCK}
    if hasattr(kv_cache_utils, "resolve_kv_cache_block_sizes"):
        names = ("block_size", "hash_block_size")
        both = kv_cache_utils.resolve_kv_cache_block_sizes(cache, config)
        sizes = dict(zip(names, both, strict=True))
    scheduler = Scheduler(
        config,
        kv_cache_utils.generate_scheduler_kv_cache_config([cache]),
        StructuredOutputManager(config),
        **sizes,
    )
    return scheduler, sizes.get("hash_block_size", BLOCK)


def _attention(sliding: int) -> dict[str, Any]:
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    common = {
        "block_size": BLOCK,
        "num_kv_heads": 2,
        "head_size": 16,
        "dtype": torch.float32,
    }
    return {
        f"model.layers.{i}.self_attn.attn": (
            SlidingWindowSpec(**common, sliding_window=32)
            if i < sliding
            else FullAttentionSpec(**common)
        )
        for i in range(4)
    }


def step(server: Server) -> list[str]:
    """Schedule, run and save one step; returns the batch in its order."""
    from vllm.v1.outputs import ModelRunnerOutput

    output = server.scheduler.schedule()
    states, metadata = batch(server, output)
    sampled, transferred = _run(server, output, states, metadata)
    result = ModelRunnerOutput(
        req_ids=list(server.order),
        req_id_to_index={name: i for i, name in enumerate(server.order)},
        sampled_token_ids=sampled,
        prompt_logprobs_dict={},
        pooler_output=[],
        kv_connector_output=transferred,
    )
    server.scheduler.update_from_output(output, result)
    return list(server.order)


def finish(server: Server) -> None:
    """Steps until all requests have come to their end, and all files are written."""
    while server.scheduler.has_requests():
        step(server)


def batch(server: Server, output: Any) -> tuple[torch.Tensor, Any]:
    """What the model runner makes of a scheduler's output: rows and their slots."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    cached = output.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    computed |= {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
    # vLLM's persistent batch: who stays, keeps its place; who comes, comes last.
    resumed = [name for name in cached.req_ids if name in cached.resumed_req_ids]
    stay = [name for name in server.order if name in computed and name not in resumed]
    new = [request.req_id for request in output.scheduled_new_reqs]
    server.order = [*stay, *new, *resumed]
    rows, slots, starts = [], [], [0]
    for name in server.order:
        tokens = server.scheduler.requests[name].all_token_ids
        tables = server.scheduler.kv_cache_manager.get_block_ids(name)
        blocks = tables[server.group]
        count = output.num_scheduled_tokens[name]
        for position in range(computed[name], computed[name] + count):
            block, place = divmod(position, server.block_size)
            slots.append(blocks[block] * server.block_size + place)
            rows.append((tokens[position], position))
        starts.append(len(rows))
    hidden = server.proposer.hidden_size
    states = torch.zeros(len(rows), hidden, dtype=server.kv_cache.dtype)
    if rows:
        states[:, :2] = torch.tensor(rows)
    where = torch.tensor(starts, dtype=torch.int32)
    return states, CommonAttentionMetadata(
        query_start_loc=where,
        query_start_loc_cpu=where,
        seq_lens=where[1:] - where[:-1],
        num_reqs=len(server.order),
        num_actual_tokens=len(rows),
        max_query_len=max(output.num_scheduled_tokens.values(), default=0),
        max_seq_len=server.config.model_config.max_model_len,
        block_table_tensor=torch.zeros(len(server.order), 1, dtype=torch.int32),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
    )


def _run(
    server: Server, output: Any, states: torch.Tensor, metadata: Any
) -> tuple[list[list[int]], Any]:
    """The runner's part: the drafter saves the states, between connector calls."""
    from vllm.forward_context import set_forward_context
    from vllm.v1.worker.kv_connector_model_runner_mixin import (
        KVConnectorModelRunnerMixin as Mixin,
    )

    if not server.order:
        done = Mixin.kv_connector_no_forward(output, server.config)
        return [], done.kv_connector_output
    with (
        set_forward_context(None, server.config),
        Mixin.maybe_get_kv_connector_output(output, defer_finalize=True) as transferred,
    ):
        pass
    sampled = torch.full((len(server.order), 1), OUTPUT)
    propose(server, sampled, states, metadata)
    Mixin.finalize_kv_connector()
    requests = [server.scheduler.requests[name] for name in server.order]
    whole = [r.num_computed_tokens >= r.num_tokens for r in requests]
    return [[OUTPUT] if done else [] for done in whole], transferred


def propose(server: Server, sampled: torch.Tensor, states: Any, metadata: Any) -> Any:
    """The drafter's step, with the arguments that this release wants."""
    arguments = {
        "sampled_token_ids": sampled,
        "target_hidden_states": [states] * server.proposer.num_hidden_states,
        "common_attn_metadata": metadata,
        "num_speculative_tokens": 1,
    }
    wanted = inspect.signature(server.proposer.propose).parameters
    return server.proposer.propose(
        **{name: value for name, value in arguments.items() if name in wanted}
    )
