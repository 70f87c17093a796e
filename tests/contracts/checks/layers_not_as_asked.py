"""The drafter that keeps the states must not put one layer in another's place."""

import inspect
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import torch
from stock_server import stock_arguments
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.spec_decode.extract_hidden_states import ExtractHiddenStatesProposer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

Model = Callable[[Iterable[int]], list[int]]  # ids asked for to layers returned


def proposer(layer_ids: list[int]) -> ExtractHiddenStatesProposer:
    arguments = stock_arguments(Path(tempfile.mkdtemp()))
    draft = arguments["speculative_config"]["draft_model_config"]["hf_config"]
    draft["eagle_aux_hidden_state_layer_ids"] = layer_ids
    transfer = KVTransferConfig(**arguments.pop("kv_transfer_config"))
    engine_args = EngineArgs(kv_transfer_config=transfer, **arguments)
    config = engine_args.create_engine_config()
    kept = ExtractHiddenStatesProposer(config, torch.device("cpu"))
    kept.model = torch.nn.Identity()  # it would only cache what was kept
    return kept


def asked_of_the_model(drafter: ExtractHiddenStatesProposer) -> tuple[int, ...]:
    """The ids that vLLM's runner tells the model."""
    runner = GPUModelRunner.__new__(GPUModelRunner)
    runner.speculative_config = drafter.vllm_config.speculative_config
    return runner._get_eagle3_aux_layers_from_config()


def keep(layer_ids: list[int], model: Model) -> list[float]:
    """What is kept of a token of which layer x has the states x, by slot."""
    drafter = proposer(layer_ids)
    layers = model(asked_of_the_model(drafter))
    call = {
        "num_speculative_tokens": 1,
        "sampled_token_ids": torch.zeros(1, 1, dtype=torch.int32),
        "target_hidden_states": [torch.full((3, 64), float(x)) for x in layers],
        "common_attn_metadata": None,
    }
    known = inspect.signature(drafter.propose).parameters
    with suppress(AssertionError):  # there is no cache to write to
        drafter.propose(**{k: v for k, v in call.items() if k in known})
    return drafter.hidden_states[0, :, 0].tolist()


def ascending(asked: Iterable[int]) -> list[int]:
    """A model that walks through its layers and keeps each that is asked for."""
    return sorted(set(asked))


def without_the_last(asked: Iterable[int]) -> list[int]:
    return ascending(asked)[:-1]


def main() -> None:
    assert keep([1, 4], ascending) == keep([1, 4], list) == [1, 4]
    try:
        found = keep([1, 4], without_the_last)
    except ValueError as error:
        assert "[1, 4] name 2" in str(error), error
    else:
        assert found != [1, 1], "layer 1 was kept in the place of layer 4"
    for ids in ([4, 1], [1, 4, 1]):
        for model in (ascending, list):
            assert keep(ids, model) == ids, (ids, model)


if __name__ == "__main__":
    main()
