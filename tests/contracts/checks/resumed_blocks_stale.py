"""A request that was preempted must be saved from the blocks that it has now."""

from stock_steps import serve, step, wrong

PROMPTS = {"stays": list(range(10, 40)), "preempted": list(range(50, 80))}


def main() -> None:
    # Five blocks: two for each prompt, and one that the first to grow takes.
    server = serve(blocks=6, enable_prefix_caching=False)
    for name, prompt in PROMPTS.items():
        server.add(name, prompt, max_tokens=22)
    batches = []
    while server.scheduler.has_unfinished_requests():
        batches.append(step(server))
    assert ["stays"] in batches and ["preempted"] in batches, batches
    found = wrong(server, PROMPTS)
    assert not found, "; ".join(found)


if __name__ == "__main__":
    main()
