"""The stock connector's CUDA streams, done at once: the CPU has no queue."""

from contextlib import nullcontext
from typing import Any

import torch


class Done:
    """A stream or an event on a device that works in order."""

    def record(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def query(self) -> bool:
        return True


def do_at_once() -> None:
    """Let the connector copy on the CPU; nothing else of it changes."""
    if torch.cuda.Stream is Done:
        return
    plain = torch.empty_like

    def empty_like(tensor: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return plain(tensor, **{**kwargs, "pin_memory": False})

    torch.empty_like = empty_like
    torch.cuda.Stream = torch.cuda.Event = Done
    torch.cuda.current_stream = Done
    torch.cuda.stream = lambda stream: nullcontext()
