"""Of an aborted request nothing may be left, unless a client may want its sample."""

from typing import Any

from stock_halves import Engine, fail, stock
from vllm.v1.request import RequestStatus


class WithItsOwnMetadata(stock.ExampleHiddenStatesConnector):
    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return stock.ExampleHiddenStatesConnectorMetadata()


def main() -> None:
    engine = Engine()
    scheduler, connector = engine.scheduler, engine.scheduler.connector
    at_the_end = hasattr(connector, "_pending_saves")  # from 0.24 on
    engine.add("kept", tokens=15)
    engine.add("going", tokens=15, max_tokens=4)
    aborted, wanted = ["going"], {"kept"}
    if not at_the_end:  # it is written, under a name that the client may know
        wanted.add("going")
    if hasattr(connector, "allow_custom_save_path"):
        connector.allow_custom_save_path = True
        path = str(engine.storage / "chosen.safetensors")
        engine.add("chosen", tokens=15, max_tokens=4, hidden_states_path=path)
        aborted.append("chosen")
        wanted.add("chosen")
    engine.step()
    scheduler.finish_requests(aborted, RequestStatus.FINISHED_ABORTED)
    scheduler.scheduler_config.long_prefill_token_threshold = 8
    scheduler.adaptive_long_prefill_threshold = False  # of newer releases
    halves = ["half", "another"]  # one alone is computed at once, from 0.32 on
    for name in halves:
        engine.add(name, tokens=15)
    engine.step()
    scheduler.finish_requests(halves, RequestStatus.FINISHED_ABORTED)
    engine.drain()
    assert engine.answers.keys() == {"kept"}, engine.answers
    left = [name for name in engine.files() if name.split(".")[0] not in wanted]
    if left:
        fail(f"left behind: {left}")
    for name in wanted:
        path = str(engine.storage / f"{name}.safetensors")
        engine.answers[name] = {"hidden_states_path": path}
        assert engine.read(name)["hidden_states"].shape == (15, 2, 64)

    connector.__class__ = WithItsOwnMetadata  # then the worker never hears of it
    connector._request_filenames["own"] = "own.safetensors"
    engine.add("own", tokens=15, max_tokens=4)
    scheduler.schedule()
    scheduler.finish_requests("own", RequestStatus.FINISHED_ABORTED)
    assert not vars(connector).get("_specshim_left"), "grows for ever"


if __name__ == "__main__":
    main()
