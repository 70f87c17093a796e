"""The one hook point of the tap: a worker has loaded its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._multi import tap_child
from specshim.patching import Fingerprint, Patch, Target

MODULE = "specshim.tap.connector"


def load_model(
    wrapped: Callable[..., Any],
    instance: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Load the model, then tap it where the server is a tapped one.

    Raises:
        TapRefused: the model cannot be tapped; the server must not start.
    """
    config = instance.vllm_config
    if not _is_tapped(config.kv_transfer_config):
        return wrapped(*args, **kwargs)
    check_rows_are_whole(config)
    result = wrapped(*args, **kwargs)
    _tap(instance)
    return result


_SPLITTING = (
    ("compilation_config.pass_config.enable_sp", "the sequence-parallelism pass"),
    (
        "compilation_config.pass_config.fuse_gemm_comms",
        "the async tensor-parallel pass",
    ),
    ("parallel_config.enable_dbo", "dual batch overlap"),
    ("parallel_config.use_ubatching", "micro-batching"),
    ("parallel_config.enable_hc_sp", "sequence parallelism"),
    ("cache_config.kv_sharing_fast_prefill", "fast prefill"),
)


def check_rows_are_whole(config: Any) -> None:
    """Refuse what splits or drops rows of a forward, in the configuration as it ended.

    The plan has refused it where it was asked for; a platform or an optimisation level
    may have switched it on since.

    Raises:
        TapRefused: a layer's output would not be one row per token.
    """
    from specshim.tap.layers import TapRefused

    for path, what in _SPLITTING:
        found = config
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is True:
            raise TapRefused(
                f"the tap route cannot record layers under {what}, which vLLM has "
                f"switched on here ({path}); switch it off"
            )
    contexts = getattr(config.parallel_config, "prefill_context_parallel_size", 1)
    if contexts > 1:
        raise TapRefused(
            "the tap route cannot record layers under prefill context parallelism; "
            "leave it out"
        )


def _is_tapped(transfer: Any) -> bool:
    """Whether a KVTransferConfig names the tap connector, or one beside it does."""
    if getattr(transfer, "kv_connector_module_path", None) == MODULE:
        return True
    extra = getattr(transfer, "kv_connector_extra_config", None)
    kv = {"kv_connector": getattr(transfer, "kv_connector", None)}
    return tap_child({**kv, "kv_connector_extra_config": extra}) is not None


def _tap(worker: Any) -> None:
    from vllm.config import set_current_vllm_config

    from specshim.tap.connector import TAPS, layer_ids_of
    from specshim.tap.rows import watch_batches
    from specshim.tap.stages import this_stage
    from specshim.tap.taps import install_taps

    config = worker.vllm_config
    with set_current_vllm_config(config):
        stage = this_stage(config.model_config.get_total_num_hidden_layers())
        taps = install_taps(worker.model_runner, config, layer_ids_of(config), stage)
    watch_batches(worker.model_runner)
    object.__setattr__(config.compilation_config, TAPS, taps)


LOADED_MODEL = Patch(
    id="tap-loaded-model",
    kind="hook",
    summary="records decoder-layer outputs on servers of the tap route",
    why=(
        "The layers must be wrapped in every worker after the weights are loaded and "
        "before the first forward is compiled, and no connector method is called then."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.17.0,<=0.32.0"),
    targets=(
        Target(
            name="vllm.v1.worker.gpu_worker.Worker.load_model",
            wrapper=load_model,
            forms=(Fingerprint(parameters=("self",), contains=("self.model_runner",)),),
        ),
    ),
    processes=("worker",),
)

HOOKS = (LOADED_MODEL,)
