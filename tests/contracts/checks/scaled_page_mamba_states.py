"""With prefix caching, a cached Mamba state has seen the tokens of its hash."""

from kv_layouts import Planned, config, every, full, hidden, mamba

SPECS = every(4, 16, full(), mamba(8000, 16, padded=8192)) | hidden(4, 5120)


def main() -> None:
    made = config(budget=48)  # tokens per step
    wrong = Planned(made, SPECS, 16 << 30).wrong_states(400)
    if wrong:
        seen, hashed = wrong[0]
        raise SystemExit(f"a state of {seen} tokens is cached as that of {hashed}")


if __name__ == "__main__":
    main()
