"""The connector finds the hidden states of a model that packs pages, on both sides."""

from kv_layouts import HIDDEN, Planned, config, deepseek_v4_flash, hidden


def main() -> None:
    made = config(8192, block=256, layout="BLHNC")
    specs = deepseek_v4_flash() | hidden(4, 4096, 256)
    planned = Planned(made, specs, 1 << 40)
    for index, size in planned.hidden_groups():
        group = planned.worker.kv_cache_groups[index]
        assert HIDDEN in group.layer_names
        assert size == group.kv_cache_spec.block_size


if __name__ == "__main__":
    main()
