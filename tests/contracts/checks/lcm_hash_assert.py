"""Extraction leaves prefix caching its grain: hashes and hits at the model's blocks."""

from kv_layouts import Planned, config, every, full, hidden, mamba

PAGE = 544 * 2 * 2 * 128 * 2
SPECS = every(4, 64, full(544, 2), mamba(500_000, 544, padded=PAGE))


def main() -> None:
    plain = Planned(config(block=544), SPECS | hidden(1, 1536, 544), 64 << 30)
    scheduler_block, hash_block = plain.sizes
    if scheduler_block != 544:
        raise SystemExit(f"hashed at {hash_block}, found at {scheduler_block} tokens")
    assert hash_block == 136  # the largest divisor of 544 that fits the page
    assert plain.takes(1000)[-1] == 8


if __name__ == "__main__":
    main()
