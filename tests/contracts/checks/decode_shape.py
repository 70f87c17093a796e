"""After a decode step vLLM must find room for the draft tokens."""

from types import SimpleNamespace

import torch
from cpu_streams import Done
from stock_steps import batch, propose, serve


def main() -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    server = serve(enable_chunked_prefill=False)
    for name in ("one", "other"):
        server.add(name, [1, 2, 3], max_tokens=4)
    output = server.scheduler.schedule()
    states, metadata = batch(server, output)
    # With a draft token per request the target samples two: its own and one more.
    sampled = torch.tensor([[5, 6], [8, -1]])
    drafts = propose(server, sampled, states, metadata)
    runner = SimpleNamespace(
        use_async_scheduling=False,
        input_batch=SimpleNamespace(req_ids=server.order),
        draft_token_ids_event=Done(),
        draft_token_ids_copy_stream=Done(),
        draft_token_ids_cpu=torch.zeros(4, 1, dtype=torch.int64),
        _draft_token_ids=drafts,
    )
    GPUModelRunner._copy_draft_token_ids_to_cpu(runner, output)
    assert runner.draft_token_ids_cpu[:2].tolist() == [[5], [8]]


if __name__ == "__main__":
    main()
