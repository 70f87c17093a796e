"""An aborted request must leave nothing for the Mooncake store, and free its blocks."""

from stock_server import scheduler
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

CONNECTOR = {
    "kv_connector": "MooncakeHiddenStatesConnector",
    "kv_role": "kv_producer",
    "kv_connector_module_path": "hs_connectors.mooncake_hidden_states_connector",
}


def main() -> None:
    queue = scheduler(CONNECTOR)
    free = queue.kv_cache_manager.block_pool.get_num_free_blocks()
    for name in ("running", "waiting"):
        queue.add_request(Request(name, [1, 2, 3], SamplingParams(max_tokens=9), None))
        if name == "running":
            assert queue.schedule().num_scheduled_tokens == {"running": 3}
    for name in ("running", "waiting"):
        queue.finish_requests(name, RequestStatus.FINISHED_ABORTED)
    output = queue.schedule()
    pending = [save.req_id for save in output.kv_connector_metadata.pending_saves]
    assert not pending, f"samples of aborted requests will be stored: {pending}"
    # The worker's half reports both, as it does on a rank that stores nothing.
    connector = queue.connector
    worker = type(connector)(
        queue.vllm_config, KVConnectorRole.WORKER, queue.kv_cache_config
    )
    worker.bind_connector_metadata(output.kv_connector_metadata)
    done, _ = worker.get_finished(output.finished_req_ids)
    assert done == {"running", "waiting"}
    told = ModelRunnerOutput(
        req_ids=[],
        req_id_to_index={},
        sampled_token_ids=[],
        kv_connector_output=KVConnectorOutput(finished_sending=done),
    )
    queue.update_from_output(output, told)
    assert queue.kv_cache_manager.block_pool.get_num_free_blocks() == free
    assert not queue.requests


if __name__ == "__main__":
    main()
