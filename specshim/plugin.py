"""The entry point in vllm.general_plugins: every vLLM process calls register()."""

from __future__ import annotations


def register() -> None:
    """Arm specshim's hooks, and in a server on the cache route its patches.

    Re-entrant, and raises only under SPECSHIM_STRICT=1: vLLM calls it outside its
    guard, so that stops the process. It does so in the frontend, the engine core,
    each worker and the model-inspection subprocess, in some of them twice.
    """
    from specshim import _install_needed
    from specshim.patching import contained

    with contained("the vLLM plugin"):
        _install_needed()
