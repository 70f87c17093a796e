"""Parts of vLLM's CPU build that some families need and that it lacks, for the tests.

None of them touches decoder layers' outputs, norms or residuals: they stand for one
kernel inside a layer each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def sigmoid_router() -> None:
    """Route by the scores' sigmoid where experts have no groups: one group of all."""
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

    compute: Callable[..., Any] = CPURouter._compute_routing

    def routed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.use_grouped_topk and self.scoring_func == "sigmoid":
            self.use_grouped_topk = True
            self.topk_group = self.num_expert_group = 1
        return compute(self, *args, **kwargs)

    CPURouter._compute_routing = routed


def contiguous_gemm() -> None:
    """oneDNN's matrix product asserts rows without gaps."""
    from vllm import _custom_ops as ops

    multiply: Callable[..., Any] = ops.onednn_mm
    ops.onednn_mm = lambda handler, x, bias: multiply(handler, x.contiguous(), bias)


STAND_INS: dict[str, Callable[[], None]] = {
    "sigmoid_router": sigmoid_router,
    "contiguous_gemm": contiguous_gemm,
}
