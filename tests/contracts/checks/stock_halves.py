"""Both halves of the stock connector, driven step by step as an engine does."""

import pickle
import sys
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from stock_server import scheduler as dense_scheduler
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.v1 import (
    example_hidden_states_connector as stock,
)
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.forward_context import override_forward_context
from vllm.model_executor.models.extract_hidden_states import (
    CacheOnlyAttentionLayer,
    CacheOnlyAttentionMetadata,
)
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

LAYER = "cache_only_layers.4"
LAYERS, HIDDEN = 2, 64  # what stock_server asks for


def cpu_streams() -> None:
    """There is no GPU here: streams are torch.cpu's, and no memory is pinned."""
    empty_like = torch.empty_like

    def unpinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return empty_like(*args, **kwargs)

    torch.empty_like = unpinned
    torch.cuda.Stream, torch.cuda.Event = torch.cpu.Stream, torch.cpu.Event
    torch.cuda.stream = torch.cpu.stream


def states_of(blocks: int, block_size: int) -> torch.Tensor:
    """A hidden-states cache as the release lays it out; every row is different."""
    slots = torch.arange(1, blocks * block_size + 1, dtype=torch.float32)
    rows = slots.reshape(blocks, block_size, 1, 1).expand(-1, -1, LAYERS, HIDDEN)
    heads_first = "shape[2]" in Path(stock.__file__).read_text()  # from 0.29 on
    return (rows.transpose(1, 2) if heads_first else rows).contiguous()


def rows_of(blocks: list[int], block_size: int, count: int) -> torch.Tensor:
    """The rows that ``states_of`` has for the first tokens of a request."""
    slots = [b * block_size + i + 1 for b in blocks for i in range(block_size)]
    return torch.tensor(slots[:count], dtype=torch.float32)


class Engine:
    """A real scheduler and the real worker's half; the model's part is left out."""

    def __init__(
        self, scheduler: Any = None, rank: int = 0, connector: Any = None
    ) -> None:
        cpu_streams()
        self.scheduler = scheduler or dense_scheduler()
        config = self.scheduler.vllm_config
        for module in (stock, parallel_state):  # there is no process group here
            module.get_tensor_model_parallel_rank = lambda: rank
        connector = connector or stock.ExampleHiddenStatesConnector
        cache = self.scheduler.kv_cache_config
        with set_current_vllm_config(config):
            if LAYER not in config.compilation_config.static_forward_context:
                CacheOnlyAttentionLayer(LAYERS, HIDDEN, prefix=LAYER)
            self.worker = connector(config, KVConnectorRole.WORKER, cache)
        groups = cache.kv_cache_groups
        self.group = next(i for i, g in enumerate(groups) if LAYER in g.layer_names)
        self.block_size = groups[self.group].kv_cache_spec.block_size
        self.states = states_of(cache.num_blocks, self.block_size)
        self.worker.register_kv_caches({LAYER: self.states})
        self.output: Any = None
        self.answers: dict[str, Any] = {}

    @property
    def storage(self) -> Path:
        return Path(self.worker._storage_path)

    def add(
        self, request_id: str, tokens: int = 3, max_tokens: int = 1, **transfer: Any
    ) -> None:
        extra = {"kv_transfer_params": transfer} if transfer else None
        parameters = SamplingParams(max_tokens=max_tokens, extra_args=extra)
        parameters.update_from_generation_config({}, 1)
        request = Request(request_id, list(range(tokens)), parameters, None)
        self.scheduler.add_request(request)

    def forward(self) -> Any:
        """A step up to its forward; returns what the worker reports as finished."""
        return self.work(self.scheduler.schedule())

    def work(self, output: Any) -> Any:
        """The worker's part of a step; returns what it reports as finished."""
        self.output = output
        metadata = pickle.loads(pickle.dumps(self.output.kv_connector_metadata))
        self.worker.bind_connector_metadata(metadata)
        self.worker.start_load_kv(SimpleNamespace(attn_metadata=None))
        if self.output.total_num_scheduled_tokens:
            self.save()
            self.worker.wait_for_save()
        finished, _ = self.worker.get_finished(self.output.finished_req_ids)
        self.worker.clear_connector_metadata()
        return finished

    def drain(self) -> None:
        """Step until the scheduler knows no request any more, and all is written."""
        for _ in range(8):
            if not self.scheduler.requests:
                break
            self.step()
        self.step()
        assert not self.scheduler.requests, "blocks are never freed"
        if hasattr(self.worker, "_req_futures"):
            wait(list(self.worker._req_futures.values()))

    def save(self) -> None:
        """The layer's part of the forward; up to 0.23 the states are saved here."""
        slots = [
            block * self.block_size + i
            for request_id, count in self.output.num_scheduled_tokens.items()
            for block in self.blocks(request_id)[: -(-count // self.block_size)]
            for i in range(min(count, self.block_size))
        ]
        mapping = torch.tensor(slots)
        context = SimpleNamespace(slot_mapping={LAYER: mapping})
        with override_forward_context(context):
            metadata = CacheOnlyAttentionMetadata(slot_mapping=mapping)
            self.worker.save_kv_layer(LAYER, self.states, metadata)

    def blocks(self, request_id: str) -> list[int]:
        """The blocks of a request in the hidden states' group."""
        return self.scheduler.kv_cache_manager.get_block_ids(request_id)[self.group]

    def update(self, finished: Any) -> None:
        """The scheduler's part after the forward: each whole prompt samples a 7."""
        ids = list(self.output.num_scheduled_tokens)
        requests = [self.scheduler.requests[request_id] for request_id in ids]
        whole = [r.num_computed_tokens >= r.num_tokens for r in requests]
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=[[7] if done else [] for done in whole],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=KVConnectorOutput(finished_sending=finished),
        )
        updates = self.scheduler.update_from_output(self.output, result)
        for outputs in updates.values():
            for output in outputs.outputs:
                if output.kv_transfer_params is not None:
                    self.answers[output.request_id] = output.kv_transfer_params

    def step(self) -> None:
        self.update(self.forward())

    def files(self) -> list[str]:
        """What lies in the storage folder; stock_server puts a config there."""
        return sorted({p.name for p in self.storage.iterdir()} - {"config.json"})

    def read(self, request_id: str) -> dict[str, torch.Tensor]:
        """The sample of a request as vLLM's own reader loads it."""
        path = self.answers[request_id]["hidden_states_path"]
        read = getattr(stock, "load_hidden_states", load_file)  # from 0.22 on
        return read(path)


def fail(sentence: str) -> None:
    """End the check as one that shows the fault."""
    sys.exit(sentence)
