"""A request that is aborted while it still waits must not stop the engine."""

from stock_server import scheduler
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus


def main() -> None:
    queue = scheduler()
    request = Request("waiting", [1, 2, 3], SamplingParams(max_tokens=1), None)
    queue.add_request(request)
    queue.finish_requests("waiting", RequestStatus.FINISHED_ABORTED)
    assert not queue.has_unfinished_requests()


if __name__ == "__main__":
    main()
