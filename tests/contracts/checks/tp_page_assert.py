"""A hybrid model whose pages are smaller than a token's hidden states can start."""

import traceback

from kv_layouts import Planned, config, every, full, groups, hidden, sliding, table

SPECS = every(6, 24, full(), sliding()) | hidden(4, 5120)  # 8 KiB pages, 40 KiB tokens


def main() -> None:
    try:
        found = groups(config(), SPECS)
        rows = table(found)
    except AssertionError as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise SystemExit(f"stopped in {where.name}") from None
    # Five times the tokens in five times the bytes, as vLLM 0.30 lays it out.
    assert {row[1:] for row in rows} == {
        ("SlidingWindowSpec", 80, 40960),
        ("FullAttentionSpec", 80, 40960),
        ("HiddenStateCacheSpec", 1, 40960),
    }, rows
    names = [name for group in found for name in group.layer_names]
    assert sorted(names) == sorted(SPECS)
    taken = Planned(config(), SPECS, 16 << 30).takes(1000)
    assert set(taken) == {13, 1000}, taken  # 1000 tokens in blocks of 80 and of 1


if __name__ == "__main__":
    main()
