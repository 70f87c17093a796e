"""The drafter that keeps the states must not put one layer in another's place."""

import inspect
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
from stock_server import stock_arguments
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.spec_decode.extract_hidden_states import ExtractHiddenStatesProposer


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


def keep(layer_ids: list[int], *layers: float) -> list[float]:
    """What is kept of a token of which layer x has the states x, by slot."""
    drafter = proposer(layer_ids)
    call = {
        "num_speculative_tokens": 1,
        "sampled_token_ids": torch.zeros(1, 1, dtype=torch.int32),
        "target_hidden_states": [torch.full((3, 64), x) for x in layers],
        "common_attn_metadata": None,
    }
    known = inspect.signature(drafter.propose).parameters
    with suppress(AssertionError):  # there is no cache to write to
        drafter.propose(**{k: v for k, v in call.items() if k in known})
    return drafter.hidden_states[0, :, 0].tolist()


def main() -> None:
    assert keep([1, 4], 1.0, 4.0) == [1, 4]
    try:
        found = keep([1, 4], 1.0)
    except ValueError as error:
        assert "[1, 4] name 2" in str(error), error
    else:
        assert found != [1, 1], "layer 1 was kept in the place of layer 4"
    assert keep([4, 1], 1.0, 4.0) == [4, 1]
    assert keep([1, 4, 1], 1.0, 4.0) == [1, 4, 1]


if __name__ == "__main__":
    main()
