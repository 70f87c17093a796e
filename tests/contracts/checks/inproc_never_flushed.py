"""With the engine in this process, files are there once the last output is."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stock_halves import Engine, fail
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.v1.engine.core_client import InprocClient


def client_of(engine: Engine) -> Any:
    """vLLM's own client in this process; of its engine core only the step differs."""

    def step() -> tuple[dict[int, Any], bool]:
        if not engine.scheduler.has_requests():
            return {}, False
        engine.step()
        return {}, engine.output.total_num_scheduled_tokens > 0

    kv_transfer_state._KV_CONNECTOR_AGENT = engine.worker
    client = InprocClient.__new__(InprocClient)
    client.engine_core = SimpleNamespace(
        scheduler=engine.scheduler, step_fn=step, post_step=lambda model_executed: None
    )
    return client


def main() -> None:
    engine = Engine()
    client = client_of(engine)
    engine.add("short", tokens=15)
    engine.add("long", tokens=15, max_tokens=3)
    while engine.scheduler.has_unfinished_requests():  # as LLM.generate does
        client.get_output()
    for request_id in ("short", "long"):
        path = engine.answers[request_id]["hidden_states_path"]
        if not Path(path).exists():
            fail(f"never written: {path}")
        assert engine.read(request_id)["hidden_states"].shape == (15, 2, 64)
    assert not engine.scheduler.requests, "the blocks are still taken"


if __name__ == "__main__":
    main()
