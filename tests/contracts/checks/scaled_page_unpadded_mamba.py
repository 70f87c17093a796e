"""Where pages grow for hidden states, those of Mamba layers grow along."""

from kv_layouts import Planned, config, every, full, groups, hidden, mamba, table

SPECS = every(4, 16, full(), mamba(8192, 16)) | hidden(4, 5120)


def main() -> None:
    pages = {row[3] for row in table(groups(config(), SPECS))}
    if pages != {40960}:
        raise SystemExit(f"pages of {sorted(pages)} bytes")
    taken = Planned(config(), SPECS, 16 << 30).takes(1000)
    assert set(taken) == {1, 13, 1000}, taken  # a state; blocks of 80 tokens, and of 1


if __name__ == "__main__":
    main()
