"""The one hook point of the tap: a worker has loaded its model."""

from __future__ import annotations

from typing import Any


def tap_loaded_model(worker: Any) -> None:
    """Install the taps on ``worker``'s model where the server is a tapped one.

    Raises:
        TapRefused: the model cannot be tapped.
    """
    config = worker.vllm_config
    transfer = config.kv_transfer_config
    if getattr(transfer, "kv_connector_module_path", None) != "specshim.tap.connector":
        return
    from vllm.config import set_current_vllm_config

    from specshim.tap.connector import TAPS, layer_ids_of
    from specshim.tap.rows import watch_batches
    from specshim.tap.taps import install_taps

    with set_current_vllm_config(config):
        taps = install_taps(worker.model_runner, config, layer_ids_of(config))
    watch_batches(worker.model_runner)
    object.__setattr__(config, TAPS, taps)
