"""Hidden states of a hybrid model cost their own bytes, not a whole group's.

The model is Kimi-K3 as vllm#56774 has it: 24 latent and 69 recurrent layers, pages of
432 KiB, five states of 7,168 in bfloat16, prompts of 65,536 tokens.
"""

from kv_layouts import (
    HIDDEN,
    Planned,
    config,
    every,
    full,
    gib,
    groups,
    hidden,
    latent,
    mamba,
    sliding,
    table,
)

from specshim._kv_groups import table_bytes

MODEL = {f"layers.{i}": latent(384) for i in range(3, 93, 4)} | {
    f"layers.{i}": mamba(400_000, 384, padded=442_368) for i in range(93) if i % 4 != 3
}
SPECS = MODEL | hidden(5, 7168, 384)
PAGE = 442_368


def main() -> None:
    made = config(65_536, block=384)
    alone, found = groups(made, MODEL), groups(made, SPECS)
    extra = gib(made, found) - gib(made, alone)
    tokens = table(found)[-1][2]
    own = -(-65_536 // tokens) * PAGE / 2**30
    if extra > own * 1.2:
        raise SystemExit(f"hidden states of {own:.1f} GiB cost {extra:.1f} GiB")
    # Every layer is in one group, in the page that it had; the last is found.
    assert sorted(n for g in found for n in g.layer_names) == sorted(SPECS)
    assert found[-1].layer_names == [HIDDEN]
    assert {row[3] for row in table(found)} == {PAGE}
    memory = int(gib(made, found) * 2**30) + PAGE
    planned = Planned(made, SPECS, memory)  # no more than the one request needs
    assert planned.plan.num_blocks in (memory // PAGE, memory // PAGE - 1)
    taken = planned.takes(60_000)
    states = {1, 2}  # at the end of a prompt, and one before
    assert set(taken) - states == {157, 10_000}, taken  # in blocks of 384 and of 6
    index = len(found) - 1
    assert planned.hidden_groups() == [(index, tokens)] * 2
    without_prefix_caching()
    tables_are_paid_for()


def tables_are_paid_for() -> None:
    """Gemma-3-27B: as many groups as layers where few requests need block tables."""
    model = every(6, 62, full(16, 16), sliding(16, 16))
    for sequences, width, tables in ((8, 1, 0.04), (1024, 2, 2.6)):
        made = config(131_072)
        made.scheduler_config.max_num_seqs = sequences
        found = groups(made, model | hidden(5, 5376))
        assert max(row[0] for row in table(found)) == width
        assert table_bytes(made, found) / 2**30 < tables
        assert {name for g in found for name in g.layer_names} >= set(model)
        assert gib(made, found) < 1.2 * gib(made, groups(made, model))


def without_prefix_caching() -> None:
    """Then Mamba "blocks" are as long as the model, which limits no other group."""
    made = config(65_537, block=384)
    made.cache_config.enable_prefix_caching = False
    made.cache_config.mamba_cache_mode = "none"
    specs = SPECS | {
        name: mamba(400_000, 65_537, padded=PAGE, mode="none")
        for name, spec in MODEL.items()
        if hasattr(spec, "mamba_cache_mode")
    }
    assert table(groups(made, specs))[-1][2] == 6  # tokens of 70 KiB in a page


if __name__ == "__main__":
    main()
