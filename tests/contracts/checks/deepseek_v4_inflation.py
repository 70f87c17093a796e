"""Hidden states of DeepSeek-V4-Flash cost about as much as its own cache at most.

As vllm#53243 has it: four states of 4,096 in bfloat16, prompts of 8,192 tokens.
"""

from kv_layouts import (
    HIDDEN,
    Planned,
    config,
    deepseek_v4_flash,
    gib,
    groups,
    hidden,
)

SPECS = deepseek_v4_flash() | hidden(4, 4096, 256)
OWN = 8192 * 4 * 4096 * 2 / 2**30  # a quarter of a GiB


def main() -> None:
    made = config(8192, block=256, layout="BLHNC")
    alone, found = groups(made, deepseek_v4_flash()), groups(made, SPECS)
    extra = gib(made, found) - gib(made, alone)
    # 0.4 GiB from 0.27 on, where groups may lie over each other in a block; 2 before.
    if extra > 9 * OWN:
        raise SystemExit(f"hidden states of {OWN:.2f} GiB cost {extra:.2f} GiB")
    assert sorted(n for g in found for n in g.layer_names) == sorted(SPECS)
    assert found[-1].layer_names == [HIDDEN]
    # The memory that vLLM asks for is enough for the request.
    planned = Planned(made, SPECS, int(gib(made, found) * 2**30 * 1.02))
    assert planned.sizes == (256, 4), planned.sizes
    planned.takes(8000)
    index = len(found) - 1
    assert [group for group, _ in planned.hidden_groups()] == [index] * 2


if __name__ == "__main__":
    main()
