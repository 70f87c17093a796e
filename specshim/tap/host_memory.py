"""Host memory for rows on their way out: a bounded number of blocks, used again."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

_BLOCK_BYTES = 32 << 20
_LEAST_BLOCKS = 4  # so that one is filled while others are written


@dataclass
class _Block:
    """``rows`` [n, slots, hidden]: those before ``filled`` were given out."""

    rows: torch.Tensor
    filled: int = 0
    users: int = 0


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a block, for whoever took them until they are given back."""

    rows: torch.Tensor  # [at most as many as were asked for, slots, hidden]
    block: _Block


class HostMemory:
    """Memory for at most ``max_bytes`` bytes of rows, but always for one of them.

    Blocks are allocated when they are first needed, have one size and are kept, so
    that no more than the bound is ever pinned: torch rounds pinned memory up to a power
    of two and keeps what is freed by size. Steps of few rows share a block.

    Args:
        like: rows as they come, [any number, slots, hidden].
        max_bytes: of all blocks together.
        pinned: whether a GPU copies into it.
    """

    def __init__(self, like: torch.Tensor, max_bytes: int, *, pinned: bool) -> None:
        self._like, self._pinned = like, pinned
        row = max(1, int(like.stride(0) * like.element_size()))
        size = max(row, min(_BLOCK_BYTES, max_bytes // _LEAST_BLOCKS))
        if pinned:
            size = 1 << (size.bit_length() - 1)
        self._block_rows = max(1, size // row)
        self.block_bytes = self._block_rows * row
        if pinned:  # as torch rounds it
            self.block_bytes = 1 << (self.block_bytes - 1).bit_length()
        self._most = max(1, max_bytes // self.block_bytes)
        self._blocks: list[_Block] = []
        self._free: list[_Block] = []
        self._current: _Block | None = None
        self._changed = threading.Condition()

    @property
    def bytes(self) -> int:
        """What is allocated."""
        with self._changed:
            return len(self._blocks) * self.block_bytes

    @property
    def used_bytes(self) -> int:
        """What is allocated and in use."""
        with self._changed:
            return sum(block.users > 0 for block in self._blocks) * self.block_bytes

    def allocate(self, count: int) -> None:
        """Have blocks for ``count`` rows, as far as the bound goes: pinning takes time.

        Raises:
            RuntimeError: there is no memory, not even for one block.
        """
        with self._changed:
            wanted = -(-count // self._block_rows)
            while len(self._blocks) < wanted and self._allocate():
                pass

    def holds(self, count: int) -> bool:
        """Whether ``count`` rows fit at once, be the first block shared with others."""
        with self._changed:
            return -(-count // self._block_rows) + 1 <= self._most

    def take(self, count: int) -> Part:
        """Memory for ``count`` rows, or for fewer; waits until some is given back.

        For one thread.

        Raises:
            RuntimeError: there is no memory, not even for one block.
        """
        with self._changed:
            block = self._current
            if block is None or block.filled == len(block.rows):
                block = self._current = self._next()
            start = block.filled
            block.filled = min(start + count, len(block.rows))
            block.users += 1
            return Part(block.rows[start : block.filled], block)

    def _next(self) -> _Block:
        """A block without users."""
        self._current = None  # it is full, so it is free as soon as nobody uses it
        if not self._free:
            self._allocate()
        self._changed.wait_for(lambda: self._free)
        return self._free.pop()

    def _allocate(self) -> bool:
        """One more block, unless the bound is reached, or the host has no more."""
        if len(self._blocks) >= self._most:
            return False
        shape, dtype = (self._block_rows, *self._like.shape[1:]), self._like.dtype
        try:
            # An inference tensor, which vLLM's steps would make, is only theirs.
            with torch.inference_mode(False):
                rows = torch.empty(shape, dtype=dtype, pin_memory=self._pinned)
        except RuntimeError:
            if not self._blocks:
                raise
            self._most = len(self._blocks)  # go on with those there are
            return False
        block = _Block(rows)
        self._blocks.append(block)
        self._free.append(block)
        return True

    def give_back(self, part: Part) -> None:
        """The rows are not needed any more; for any thread."""
        block = part.block
        with self._changed:
            block.users -= 1
            if block.users == 0:
                block.filled = 0
                if block is not self._current:
                    self._free.append(block)
                self._changed.notify_all()
