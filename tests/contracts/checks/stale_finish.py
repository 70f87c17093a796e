"""A report about a request that is gone must not stop the engine."""

from stock_steps import Engine
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus


def main() -> None:
    engine = Engine()
    engine.add("live", max_tokens=4)
    engine.step()
    late = KVConnectorOutput(finished_recving={"gone"}, finished_sending={"gone"})
    engine.scheduler._update_from_kv_xfer_finished(late)
    engine.add("waiting")
    engine.scheduler.finish_requests("waiting", RequestStatus.FINISHED_ABORTED)
    engine.step()
    while engine.scheduler.has_requests() and engine.scheduler.requests:
        engine.step()
    assert engine.answers.keys() == {"live"}


if __name__ == "__main__":
    main()
