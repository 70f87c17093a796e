"""A prompt with a cached prefix must be saved with its own rows, all of them."""

from stock_steps import finish, serve, wrong

SHARED = list(range(40, 72))  # two blocks
WARM = {"warm": [*SHARED, 1, 2, 3]}
ALONE = {"alone": [*SHARED, 4, 5]}
TOGETHER = {"first": [*SHARED, 6, 8, 9], "second": list(range(80, 120))}


def problems(sliding_layers: int) -> list[str]:
    server = serve(
        sliding_layers=sliding_layers,
        enable_chunked_prefill=False,
        enable_prefix_caching=True,
    )
    for prompts in (WARM, ALONE, TOGETHER):
        for name, prompt in prompts.items():
            server.add(name, prompt)
        finish(server)
    return wrong(server, {**WARM, **ALONE, **TOGETHER})


def problems_of_a_split() -> list[str]:
    """A prompt that takes several steps is saved whole or not at all."""
    split, whole = {"split": list(range(10, 50))}, {"whole": list(range(60, 70))}
    server = serve(enable_chunked_prefill=False, long_prefill_token_threshold=16)
    for name, prompt in {**split, **whole}.items():
        server.add(name, prompt)
    finish(server)
    saved = (server.folder / "split.safetensors").exists()
    return wrong(server, {**whole, **(split if saved else {})})


def main() -> None:
    # With sliding layers the hidden states have a KV cache group of their own.
    found = [*problems(sliding_layers=0), *problems(sliding_layers=2)]
    found += problems_of_a_split()
    assert not found, "; ".join(found)


if __name__ == "__main__":
    main()
