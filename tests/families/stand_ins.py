"""Parts of vLLM's CPU build that some families need and that it lacks, for the tests.

None of them touches decoder layers' outputs, norms or residuals: they stand for one
kernel inside a layer each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def one_group_router() -> None:
    """Take experts without groups for one group, without which the CPU's router asserts
    sigmoid away and leaves a correction bias out."""
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

    compute: Callable[..., Any] = CPURouter._compute_routing

    def routed(self: Any, *args: Any, **kwargs: Any) -> Any:
        corrected = self.e_score_correction_bias is not None
        known = self.scoring_func in ("softmax", "sigmoid")
        beyond = corrected or self.scoring_func == "sigmoid"
        if not self.use_grouped_topk and known and beyond:
            self.use_grouped_topk = True
            self.topk_group = self.num_expert_group = 1
        return compute(self, *args, **kwargs)

    CPURouter._compute_routing = routed


def contiguous_gemm() -> None:
    """oneDNN's matrix product asserts rows without gaps."""
    from vllm import _custom_ops as ops

    multiply: Callable[..., Any] = ops.onednn_mm
    ops.onednn_mm = lambda handler, x, bias: multiply(handler, x.contiguous(), bias)


def selective_scan() -> None:
    """Mamba 1's recurrence over a prompt, whose kernel the CPU build leaves out."""
    import torch
    from vllm import _custom_ops as ops

    def scan(
        u: Any, delta: Any, a: Any, b: Any, c: Any, d: Any, z: Any, bias: Any,
        softplus: bool, starts: Any, slots: Any, continued: Any, states: Any,
        null_slot: int, *_: Any,
    ) -> None:  # fmt: skip
        for n, slot in enumerate(slots.tolist()):
            if slot == null_slot:
                continue
            first, last = int(starts[n]), int(starts[n + 1])
            state = states[slot].float() * float(continued[n])
            for t in range(first, last):
                step = delta[:, t].float() + (0 if bias is None else bias)
                step = torch.nn.functional.softplus(step) if softplus else step
                state = state * torch.exp(step[:, None] * a)
                state = state + (step * u[:, t])[:, None] * b[0, :, t]
                out = state @ c[0, :, t] + d * u[:, t]
                if z is None:
                    delta[:, t] = out
                else:
                    z[:, t] = out * torch.nn.functional.silu(z[:, t])
            states[slot] = state

    ops.selective_scan_fwd = scan


def ungated_experts() -> None:
    """Experts without a gate, relu(x)^2 between two matrices, in plain torch."""
    import torch
    from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import (
        CPUUnquantizedExperts,
    )

    check: Callable[..., None] = FusedMoEConfig.__post_init__
    pack: Callable[..., None] = CPUUnquantizedExperts.process_weights_after_loading

    def checked(self: Any) -> None:
        try:
            check(self)
        except NotImplementedError:  # its last statement
            assert not self.is_act_and_mul

    def packed(self: Any, layer: Any) -> None:
        if self.moe_config.is_act_and_mul:
            pack(self, layer)

    def apply(self: Any, output: Any, x: Any, w1: Any, w2: Any, *more: Any) -> None:
        weights, experts = more[0], more[1]
        output.zero_()
        for expert in range(w1.shape[0]):
            inner = torch.relu(x @ w1[expert].T).square() @ w2[expert].T
            share = (weights * (experts == expert)).sum(-1, keepdim=True)
            output += inner * share

    FusedMoEConfig.__post_init__ = checked
    CPUUnquantizedExperts._supports_no_act_and_mul = staticmethod(lambda: True)
    CPUUnquantizedExperts._supports_activation = staticmethod(lambda activation: True)
    CPUUnquantizedExperts.process_weights_after_loading = packed
    gated: Callable[..., None] = CPUUnquantizedExperts.apply

    def applied(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.moe_config.is_act_and_mul:
            gated(self, *args, **kwargs)
        else:
            names = ("output", "hidden_states", "w1", "w2", "topk_weights", "topk_ids")
            given = dict(zip(names, args, strict=False)) | kwargs
            apply(self, *[given[name] for name in names])

    CPUUnquantizedExperts.apply = applied


STAND_INS: dict[str, Callable[[], None]] = {
    "one_group_router": one_group_router,
    "contiguous_gemm": contiguous_gemm,
    "selective_scan": selective_scan,
    "ungated_experts": ungated_experts,
}
