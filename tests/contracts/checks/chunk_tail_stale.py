"""The last chunk of a prompt must be saved, even if it fits in the blocks there are."""

from stock_steps import finish, serve, wrong

PROMPT = {"chunked": list(range(50, 85))}  # 35 tokens: 33 and 2, in three blocks


def main() -> None:
    server = serve(
        enable_chunked_prefill=True, max_num_batched_tokens=33, max_num_seqs=4
    )
    server.add("chunked", PROMPT["chunked"], max_tokens=4)
    finish(server)
    found = wrong(server, PROMPT)
    assert not found, "; ".join(found)


if __name__ == "__main__":
    main()
