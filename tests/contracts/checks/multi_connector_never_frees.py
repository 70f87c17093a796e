"""Two ranks of a MultiConnector: what the stock connector held is free in the end."""

import tempfile
from pathlib import Path
from typing import Any

from stock_halves import Engine, fail
from stock_server import scheduler
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

STOCK, SILENT = "ExampleHiddenStatesConnector", "ExampleConnector"
RANKS = 2


class Rank(Engine):
    """One rank of a server whose connector is a MultiConnector."""

    def __init__(self, queue: Any, rank: int, folder: Path) -> None:
        super().__init__(queue, rank, MultiConnector)
        self.folder = folder

    @property
    def storage(self) -> Path:
        return self.folder

    def save(self) -> None:
        """The silent connector would want whole layers; stock saves at the end."""


def run(names: list[str]) -> dict[str, int]:
    """Serve two requests; returns rows of their samples, by request."""
    folder = Path(tempfile.mkdtemp())
    children = [
        {
            "kv_connector": name,
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(folder / name)},
        }
        for name in names
    ]
    queue = scheduler(
        {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": children},
        },
        hybrid=SILENT not in names,
    )
    ranks = [Rank(queue, rank, folder / STOCK) for rank in range(RANKS)]
    first, second = ranks
    aggregator = KVOutputAggregator.from_connector(queue.connector, RANKS)
    pool = queue.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    first.add("one", tokens=15)
    first.add("other", tokens=12, max_tokens=2)
    for _ in range(8):
        said = [first.forward(), second.work(first.output)]
        outputs = [
            ModelRunnerOutput(
                req_ids=[],
                req_id_to_index={},
                kv_connector_output=KVConnectorOutput(finished_sending=sent),
            )
            for sent in said
        ]
        whole = aggregator.aggregate(outputs)
        first.update(whole.kv_connector_output.finished_sending)
    if queue.requests or pool.get_num_free_blocks() != free:
        fail(f"blocks are never freed: {sorted(queue.requests)}")
    for child in first.worker.sub_connectors:
        for future in list(getattr(child, "_req_futures", {}).values()):
            future.result()
    return {name: len(first.read(name)["hidden_states"]) for name in first.answers}


def main() -> None:
    assert run([STOCK]) == {"one": 15, "other": 12}  # that works as it is
    assert run([STOCK, SILENT]) == {"one": 15, "other": 12}
    assert run([SILENT, STOCK]) == {"one": 15, "other": 12}


if __name__ == "__main__":
    main()
