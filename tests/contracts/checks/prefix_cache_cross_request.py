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


def main() -> None:
    # With sliding layers the hidden states have a KV cache group of their own.
    found = [*problems(sliding_layers=0), *problems(sliding_layers=2)]
    assert not found, "; ".join(found)


if __name__ == "__main__":
    main()
