"""An FP8 KV cache must neither stop the server nor change the hidden states."""

from stock_steps import serve, step, wrong

PROMPT = {"prompt": list(range(50, 70))}


def main() -> None:
    server = serve(cache_dtype="fp8", enable_chunked_prefill=False)
    server.add("prompt", PROMPT["prompt"])
    step(server)
    found = wrong(server, PROMPT)
    assert not found, "; ".join(found)
    assert server.config.cache_config.cache_dtype == "fp8"  # for the other layers


if __name__ == "__main__":
    main()
