"""Of an aborted request nothing may be left, and a finished one keeps its file."""

from stock_halves import Engine, fail
from vllm.v1.request import RequestStatus


def main() -> None:
    engine = Engine()
    engine.add("kept", tokens=15)
    engine.add("going", tokens=15, max_tokens=4)
    engine.step()
    engine.scheduler.finish_requests("going", RequestStatus.FINISHED_ABORTED)
    engine.drain()
    assert engine.answers.keys() == {"kept"}
    left = [name for name in engine.files() if not name.startswith("kept.")]
    if left:
        fail(f"left behind: {left}")
    rows = engine.read("kept")["hidden_states"]
    assert rows.shape == (15, 2, 64)


if __name__ == "__main__":
    main()
