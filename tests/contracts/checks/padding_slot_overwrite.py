"""Rows of padding must not end up in the KV cache of a request."""

from stock_steps import finish, serve, wrong

PROMPT = {"last": list(range(50, 98))}  # 48 tokens fill blocks 1 to 3, the last ones


def main() -> None:
    from vllm.config import CUDAGraphMode

    server = serve(blocks=4, max_model_len=64, enable_chunked_prefill=False)
    compilation = server.config.compilation_config
    compilation.cudagraph_capture_sizes = [64]
    compilation.max_cudagraph_capture_size = 64
    server.proposer.initialize_cudagraph_keys(CUDAGraphMode.PIECEWISE)
    server.proposer.hidden_states.fill_(-1)  # what an earlier step left behind
    server.add("last", PROMPT["last"])
    finish(server)
    found = wrong(server, PROMPT)
    assert not found, "; ".join(found)


if __name__ == "__main__":
    main()
