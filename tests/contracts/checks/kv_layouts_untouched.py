"""Patched and taken out again, vLLM groups models without hidden states alike.

So it does where all layers, that of hidden states included, form a single group.
"""

from typing import Any

from kv_layouts import (
    config,
    deepseek_v4_flash,
    every,
    full,
    gib,
    groups,
    hidden,
    latent,
    mamba,
    sliding,
)

import specshim

DENSE = every(1, 8, full(), full())
LATENT = every(1, 8, latent(), latent())
SETS = {
    "dense": DENSE,
    "dense, hidden states": DENSE | hidden(4, 5120),
    "latent": LATENT,
    "latent, hidden states": LATENT | hidden(4, 5120),
    "one sliding layer more": every(2, 25, full(), sliding()),
    "five of six sliding": every(6, 26, full(), sliding()),
    "small sliding heads": every(6, 24, full(16, 2), sliding(16, 1)),
    "recurrent": every(4, 16, full(), mamba(8000, 16, padded=8192)),
    "recurrent, unpadded": every(4, 16, full(), mamba(8192, 16)),
    "recurrent, latent": every(4, 93, latent(384), mamba(400_000, 384, 442_368)),
    "packed": deepseek_v4_flash(),
}


def seen() -> dict[str, Any]:
    layouts = {}
    for name, specs in SETS.items():
        for layout in ("LBNHC", "BLHNC"):  # of any effect from 0.29
            if name == "packed" and layout == "LBNHC":
                continue
            made = config(4096, block=16, layout=layout)
            found = groups(made, specs)
            layouts[name, layout] = (
                [(group.layer_names, group.kv_cache_spec) for group in found],
                gib(made, found),
            )
    return layouts


def main() -> None:
    specshim.install()
    patched = seen()
    applied = {"group-width-billing"} <= set(specshim.status()["installed"])
    specshim.uninstall()
    assert applied and not specshim.status()["installed"]
    assert patched == seen()


if __name__ == "__main__":
    main()
