"""Steps of a server with the stock connector: vLLM's own parts around one made-up.

Real are the scheduler, both halves of the connector, the proposer with its cache-only
layer, the forward context and the KV tensor. The model is made up: its states say
which token of the vocabulary they belong to, and at which position.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from cpu_streams import do_at_once
from stock_server import stock_arguments

BLOCK = 16
LAYER = "cache_only_layers.4"


@dataclass
class Server:
    config: Any
    scheduler: Any
    proposer: Any
    kv_cache: torch.Tensor  # [blocks, slots, layers, hidden]
    group: int  # the KV cache group of the hidden states
    block_size: int  # and its tokens per block
    folder: Path
    order: list[str] = field(default_factory=list)  # the persistent batch

    def add(self, name: str, prompt: list[int], max_tokens: int = 1) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher
        from vllm.v1.request import Request

        hasher = get_request_block_hasher(BLOCK, sha256)
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


def expected(prompt: list[int]) -> torch.Tensor:
    positions = torch.arange(len(prompt), dtype=torch.float32)
    return torch.stack([torch.tensor(prompt, dtype=torch.float32), positions], dim=1)


def assert_saved(server: Server, name: str, prompt: list[int]) -> None:
    rows = server.saved(name)
    assert rows.shape[0] == len(prompt), f"{name}: {len(rows)} of {len(prompt)} rows"
    wrong = (rows != expected(prompt)).any(dim=1).nonzero().flatten().tolist()
    assert not wrong, f"{name}: wrong rows {wrong}"


def serve(rank: int = 0, world: int = 1, port: int = 0, **more: Any) -> Server:
    """A server for a dense model; ``more`` goes to EngineArgs."""
    from vllm.config import KVTransferConfig, set_current_vllm_config
    from vllm.distributed.kv_transfer import get_kv_transfer_group
    from vllm.distributed.kv_transfer.kv_transfer_state import (
        ensure_kv_transfer_initialized,
    )
    from vllm.distributed.parallel_state import (
        ensure_model_parallel_initialized,
        init_distributed_environment,
    )
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models.extract_hidden_states import (
        ExtractHiddenStatesModel,
    )
    from vllm.utils.hashing import sha256
    from vllm.utils.network_utils import get_open_port
    from vllm.v1.core.kv_cache_utils import (
        generate_scheduler_kv_cache_config,
        get_kv_cache_configs,
        init_none_hash,
    )
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.spec_decode.extract_hidden_states import ExtractHiddenStatesProposer
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm.v1.worker.utils import bind_kv_cache

    do_at_once()
    init_none_hash(sha256)
    folder = Path(tempfile.mkdtemp())
    sliding = more.pop("sliding_layers", 0)
    blocks = more.pop("blocks", 64)
    folder = more.pop("folder", folder)
    arguments = stock_arguments(folder, block_size=BLOCK, **more)
    transfer = KVTransferConfig(**arguments.pop("kv_transfer_config"))
    config = EngineArgs(
        kv_transfer_config=transfer, **arguments
    ).create_engine_config()
    config.cache_config.num_gpu_blocks_override = blocks
    with set_current_vllm_config(config):
        where = f"tcp://127.0.0.1:{port or get_open_port()}"
        init_distributed_environment(world, rank, where, 0, backend="gloo")
        ensure_model_parallel_initialized(world, 1)
        proposer = ExtractHiddenStatesProposer(config, torch.device("cpu"))
        proposer.model = ExtractHiddenStatesModel(vllm_config=config)
        layer = proposer.model.cache_only_layers["4"]
        proposer.attn_layer_names = [LAYER]
        proposer.attn_metadata_builder = proposer._build_attn_metadata_builder(
            {LAYER: layer}
        )
        specs = {LAYER: layer.get_kv_cache_spec(config), **_attention(sliding)}
        (cache,) = get_kv_cache_configs(config, [specs], [1 << 30])
        ensure_kv_transfer_initialized(config, cache)
    (group,) = (i for i, g in enumerate(cache.kv_cache_groups) if LAYER in g.layer_names)
    size = cache.kv_cache_groups[group].kv_cache_spec.block_size
    config.cache_config.num_gpu_blocks = cache.num_blocks
    shape = (cache.num_blocks, size, layer.num_heads, layer.head_size)
    kv_cache = torch.zeros(shape, dtype=layer.kv_cache_torch_dtype)
    known = config.compilation_config.static_forward_context
    bind_kv_cache({LAYER: kv_cache}, known, [])
    get_kv_transfer_group().register_kv_caches({LAYER: kv_cache})
    scheduler = Scheduler(
        config,
        generate_scheduler_kv_cache_config([cache]),
        StructuredOutputManager(config),
        block_size=BLOCK,
    )
    return Server(config, scheduler, proposer, kv_cache, group, size, folder)


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
    states, metadata = _batch(server, output)
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


def _batch(server: Server, output: Any) -> tuple[torch.Tensor, Any]:
    """What the model runner makes of a scheduler's output: rows and their slots."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    cached = output.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    computed |= {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
    # vLLM's persistent batch: who stays, keeps its place; who comes, comes last.
    stay = [
        name
        for name in server.order
        if name in computed and name not in cached.resumed_req_ids
    ]
    server.order = stay + [
        *(r.req_id for r in output.scheduled_new_reqs),
        *(name for name in cached.req_ids if name in cached.resumed_req_ids),
    ]
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
    layers = server.proposer.num_hidden_states
    arguments = {
        "sampled_token_ids": torch.full((len(server.order), 1), 7),
        "target_hidden_states": [states] * layers,
        "common_attn_metadata": metadata,
    }
    server.proposer.propose(**arguments)
    Mixin.finalize_kv_connector()
    sampled = []
    for name in server.order:
        request = server.scheduler.requests[name]
        whole = request.num_computed_tokens >= request.num_tokens
        sampled.append([7] if whole else [])
    return sampled, transferred
