"""What a server is asked for by stock means. Imports nothing: used in every Python."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any


def stock_request(storage: Path | str, layer_ids: Sequence[int]) -> dict[str, Any]:
    """What speculators' scripts/launch_vllm.py asks of vLLM, as EngineArgs fields."""
    draft = {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(layer_ids)}}
    return {
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": draft,
        },
        "kv_transfer_config": {
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(storage)},
        },
    }
