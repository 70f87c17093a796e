"""A prompt with a cached prefix must be saved with its own rows, all of them."""

from stock_steps import assert_saved, serve, step

SHARED = list(range(40, 72))  # two blocks


def main() -> None:
    for sliding in (0, 2):
        server = serve(sliding_layers=sliding, enable_chunked_prefill=False, enable_prefix_caching=True)
        break
    first = [*SHARED, 1, 2, 3]
    server.add("first", first)
    step(server)
    assert_saved(server, "first", first)
    alone = [*SHARED, 4, 5]
    prompts = {"alone": alone}
    server.add("alone", alone)
    step(server)
    short = server.saved("alone")
    print(short.shape)
    together = {"one": [*SHARED, 6, 8, 9], "other": list(range(80, 120))}
    for name, prompt in together.items():
        server.add(name, prompt)
    print(step(server))
    for n,p in together.items():
        try: assert_saved(server,n,p)
        except AssertionError as e: print(e)

if __name__ == "__main__":
    main()
