"""A report about a request that is gone must not stop the engine."""

from stock_halves import Engine, fail
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus


def main() -> None:
    engine = Engine()
    engine.add("live", max_tokens=2)
    engine.step()
    late = KVConnectorOutput(finished_recving={"gone"}, finished_sending={"gone"})
    try:
        engine.scheduler._update_from_kv_xfer_finished(late)
    except AssertionError:
        fail("the scheduler insists on knowing the request")
    # What the stock connector says from 0.24 to 0.30 of a request never scheduled:
    engine.add("waiting")
    engine.scheduler.finish_requests("waiting", RequestStatus.FINISHED_ABORTED)
    engine.drain()
    assert engine.answers.keys() == {"live"}


if __name__ == "__main__":
    main()
