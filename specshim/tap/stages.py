"""Pipeline stages: which of them records which layers, and which completes a file.

Id k is the stream entering layer k, so the stage that runs layer k records it; for its
first layer that is what arrives from the stage before. The last id has no layer to
enter: the last stage records its last layer's output.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specshim._sample_files import temporary_name
from specshim.tap.folder import Storage
from specshim.tap.layers import TapRefused


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline.

    Attributes:
        rank: its place among the stages.
        starts: the first layer of each stage; one more: the number of layers.
    """

    rank: int
    starts: tuple[int, ...]

    @property
    def layers(self) -> range:
        """The indices of its layers."""
        return range(self.starts[self.rank], self.starts[self.rank + 1])

    def slots(self, layer_ids: Sequence[int]) -> tuple[int, ...]:
        """Which of the requested ids it records, as indices into ``layer_ids``."""
        return tuple(s for s, i in enumerate(layer_ids) if self._owner(i) == self.rank)

    def owners(self, layer_ids: Sequence[int]) -> tuple[int, ...]:
        """The ranks of all stages that record any of them, ascending."""
        return tuple(sorted({self._owner(layer_id) for layer_id in layer_ids}))

    def _owner(self, layer_id: int) -> int:
        last = len(self.starts) - 2
        return next(
            (r for r in range(last) if layer_id < self.starts[r + 1]),
            last,
        )


def whole(count: int) -> Stage:
    """The only stage of a model of ``count`` layers."""
    return Stage(0, (0, count))


def this_stage(count: int) -> Stage:
    """The stage of this worker, for a model of ``count`` layers.

    vLLM's models divide their layers by the same function.
    """
    from vllm.distributed.parallel_state import get_pp_group
    from vllm.distributed.utils import get_pp_indices

    group = get_pp_group()
    if group.world_size == 1:
        return whole(count)
    bounds = [
        get_pp_indices(count, r, group.world_size) for r in range(group.world_size)
    ]
    return Stage(group.rank_in_group, (*[first for first, _ in bounds], count))


def check_shared(storage: str, group: Any) -> None:
    """Refuse a storage path that the stages do not share; called by all of them.

    Raises:
        TapRefused: a file that the first stage made is not seen by this one.
    """
    name, descriptor = temporary_name(), -1
    with Storage(storage).using(os.path.join(storage, name)) as folder:
        if group.rank_in_group == 0:
            name, descriptor = folder.create_temporary()
        try:
            name = group.broadcast_object(name, src=0)
            seen = folder.exists(name)
            group.barrier()
        finally:
            if descriptor >= 0:
                folder.remove(name)
                os.close(descriptor)
    if not seen:
        raise TapRefused(
            f"the pipeline's stages do not share the storage path {storage}: what the "
            f"first one writes is not seen by stage {group.rank_in_group}; choose a "
            "path on a file system that all nodes have mounted"
        )
