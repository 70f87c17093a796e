"""A request that was preempted must be saved from the blocks that it has now."""

from stock_steps import serve, step, wrong

BRIEF = {"brief": list(range(80, 90))}
PROMPTS = {"stays": list(range(10, 40)), "preempted": list(range(50, 80))}


def main() -> None:
    # Six blocks: the brief request leaves its one, so that they are not handed out
    # in the same order again; two go to each of the others, who then need a third,
    # and one of them a fourth.
    server = serve(blocks=7, max_model_len=64, enable_prefix_caching=False)
    server.add("brief", BRIEF["brief"])
    for name, prompt in PROMPTS.items():
        server.add(name, prompt, max_tokens=22)
    batches = []
    while server.scheduler.has_unfinished_requests():
        batches.append(step(server))
    assert ["stays"] in batches and ["preempted"] in batches, batches
    found = wrong(server, {**BRIEF, **PROMPTS})
    assert not found, "; ".join(found)


if __name__ == "__main__":
    main()
