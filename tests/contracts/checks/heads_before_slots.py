"""The Mooncake connector reads the cache as vLLM of this release lays it out."""

import torch
from hs_connectors import mooncake_hidden_states_connector as mooncake
from vllm.distributed.kv_transfer.kv_connector.v1 import (
    example_hidden_states_connector as stock,
)

BLOCKS, SLOTS, LAYERS, HIDDEN = 3, 4, 2, 8


def main() -> None:
    rows = torch.arange(BLOCKS * SLOTS * LAYERS * HIDDEN)
    rows = rows.view(BLOCKS * SLOTS, LAYERS, HIDDEN)
    by_slot = rows.view(BLOCKS, SLOTS, LAYERS, HIDDEN)
    probe = by_slot.transpose(1, 2)  # [block, head, slot, dim]: 0.29 and newer
    slots = torch.tensor([1, 2, 7, 9])
    assert torch.equal(stock.extract_from_kv_cache(probe, slots, 4), rows[slots])
    assert torch.equal(mooncake.extract_from_kv_cache(probe, slots, 4), rows[slots])
    connector = mooncake.MooncakeHiddenStatesConnector
    wanted = stock.ExampleHiddenStatesConnector.get_required_kvcache_layout(None)
    assert connector.get_required_kvcache_layout(None) == wanted


if __name__ == "__main__":
    main()
