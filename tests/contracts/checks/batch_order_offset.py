"""A prompt that joins running requests must be saved with its own rows."""

from stock_steps import finish, serve, step, wrong

SHARED = list(range(40, 72))  # two blocks
RUNNING = {"running": [*SHARED, 1, 2, 3]}
LATER = {"later": list(range(80, 100)), "again": [*SHARED, 4, 5]}


def problems(prefix_caching: bool) -> list[str]:
    server = serve(enable_chunked_prefill=False, enable_prefix_caching=prefix_caching)
    server.add("running", RUNNING["running"], max_tokens=8)
    step(server)
    for name, prompt in LATER.items():
        server.add(name, prompt)
    assert step(server) == ["running", "later", "again"]
    finish(server)
    return wrong(server, {**RUNNING, **LATER})


def main() -> None:
    # The second time "again" has a cached prefix as well: both faults together.
    found = [*problems(prefix_caching=False), *problems(prefix_caching=True)]
    assert not found, "; ".join(found)


if __name__ == "__main__":
    main()
