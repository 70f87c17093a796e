"""Where pages grow for hidden states, those of Mamba layers grow along."""

from kv_layouts import Planned, config, every, full, groups, hidden, mamba, table

SPECS = every(4, 16, full(), mamba(8192, 16)) | hidden(4, 5120)


def main() -> None:
    pages = {row[3] for row in table(groups(config(), SPECS))}
    if pages != {40960}:
        raise SystemExit(f"pages of {sorted(pages)} bytes")
    # Groups are one layer wide by another patch; that leaves the order as it was.
    taken = Planned(config(), SPECS, 16 << 30).takes(1000)
    states, attention, last = taken[:12], taken[12:-1], taken[-1]
    # One state and the one before it; blocks of 80 tokens; blocks of one token.
    assert (set(states), set(attention), last) == ({2}, {13}, 1000), taken


if __name__ == "__main__":
    main()
