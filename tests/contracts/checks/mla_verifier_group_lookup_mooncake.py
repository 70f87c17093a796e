"""The Mooncake connector finds the hidden states of a model that packs pages."""

from hs_connectors.mooncake_hidden_states_connector import (
    MooncakeHiddenStatesConnector as Connector,
)
from kv_layouts import HIDDEN, Planned, config, deepseek_v4_flash, hidden


def main() -> None:
    specs = deepseek_v4_flash() | hidden(4, 4096, 256)
    cache = Planned(config(8192, block=256, layout="BLHNC"), specs, 1 << 40).worker
    group = cache.kv_cache_groups[Connector._find_cache_kv_group_id(cache)]
    assert HIDDEN in group.layer_names


if __name__ == "__main__":
    main()
