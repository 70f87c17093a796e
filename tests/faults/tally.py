"""What became of the samples of one fault, and the table of all faults."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

SURVIVED, TOLD, LOST, WRONG = "survived", "told", "lost", "wrong"


@dataclass(frozen=True)
class Tally:
    """Counts of samples; one line of the table.

    ``told`` are those that failed or were aborted and whose client knows it: by a reason
    in the response or in the lock file, by a closed connection, or by no file where the
    fault took the lock file away. ``lost`` are the others without a file, or
    with a wait that does not end. ``orphans`` are whole, right files whose clients had
    gone when the answer was on its way to them.
    """

    fault: str
    injected: int
    survived: int
    told: int
    lost: int
    wrong: int
    orphans: int = 0
    note: str = ""

    def assert_nothing_lost(self) -> None:
        assert (self.lost, self.wrong) == (0, 0), self


def count(fault: str, outcomes: Iterable[str], note: str = "", **more: int) -> Tally:
    """The tally of the samples' outcomes; ``injected`` is their number if not given."""
    found = Counter(outcomes)
    injected = more.pop("injected", found.total())
    return Tally(
        fault, injected, found[SURVIVED], found[TOLD], found[LOST], found[WRONG],
        note=note, **more,
    )  # fmt: skip


def table(tallies: Iterable[Tally]) -> list[str]:
    """Right-aligned numbers under their names, one line per fault."""
    names = [field.name for field in dataclasses.fields(Tally)]
    rows = [names, *([str(v) for v in dataclasses.astuple(t)] for t in tallies)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        first, *numbers = (cell.rjust(width) for cell, width in cells)
        numbers[-1] = row[-1]
        lines.append("  ".join([row[0].ljust(len(first)), *numbers]).rstrip())
    return lines
