"""What the worker looks at before it loads a model to be tapped."""

from __future__ import annotations

from types import SimpleNamespace as Namespace
from typing import Any

import pytest

from specshim.tap.hooks import check_rows_are_whole

pytest.importorskip("torch")
from specshim.tap.layers import TapRefused


def config(**changes: Any) -> Namespace:
    passes = Namespace(enable_sp=False, fuse_gemm_comms=None)
    parallel = Namespace(enable_dbo=False, prefill_context_parallel_size=1)
    found = {"passes": passes, "parallel": parallel, "cache": Namespace(), **changes}
    return Namespace(
        compilation_config=Namespace(pass_config=found["passes"]),
        parallel_config=found["parallel"],
        cache_config=found["cache"],
    )


def test_whole_rows_pass() -> None:
    check_rows_are_whole(config())


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"passes": Namespace(enable_sp=True)}, "the sequence-parallelism pass"),
        ({"passes": Namespace(fuse_gemm_comms=True)}, "async tensor-parallel"),
        ({"parallel": Namespace(use_ubatching=True)}, "micro-batching"),
        ({"cache": Namespace(kv_sharing_fast_prefill=True)}, "fast prefill"),
        (
            {"parallel": Namespace(prefill_context_parallel_size=2)},
            "prefill context parallelism",
        ),
    ],
    ids=str,
)
def test_what_vllm_switched_on_by_itself_is_refused(
    changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(TapRefused, match=what):
        check_rows_are_whole(config(**changes))
