"""What a patch or a hook declares about itself: facts, no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

Wrapper = Callable[
    [Callable[..., Any], Any, tuple[Any, ...], Mapping[str, Any]], Any
]  # (wrapped, instance, args, kwargs) -> result, as wrapt calls it

RUNGS = ("wrap", "replace method", "replace class")  # of the ladder, lowest first
PROCESSES = ("frontend", "engine core", "worker", "trainer")
KINDS = ("patch", "hook", "aid")
OPEN = "open upstream"  # as remove_when: no release has it repaired
LOWER = frozenset({">=", ">"})  # the operators that close a range below
UPPER = frozenset({"<=", "<"})  # and above


@dataclass(frozen=True)
class Form:
    """How a function looks: its parameter names, and its source as one line.

    Whitespace runs are single spaces in ``source``, which is "" where no source
    is to be had.
    """

    parameters: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Fingerprint:
    """What a function must look like. Empty fields ask for nothing.

    ``parameters``: the leading parameter names, in order, ``self`` included.
    ``contains`` and ``lacks``: pieces of source text, whitespace as single spaces.
    """

    parameters: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    def mismatch(self, form: Form) -> str | None:
        """What differs, as the end of a sentence; None where all is as declared."""
        if form.parameters[: len(self.parameters)] != self.parameters:
            return f"its parameters are ({', '.join(form.parameters)})"
        if (self.contains or self.lacks) and not form.source:
            return "its source cannot be read"
        for piece in self.contains:
            if piece not in form.source:
                return f"its source lacks {piece!r}"
        for piece in self.lacks:
            if piece in form.source:
                return f"its source has {piece!r}"
        return None


@dataclass(frozen=True)
class Target:
    """One upstream function, and the wrapper that goes around it.

    ``name`` is dotted. The module ends before the first part that starts with a
    capital, or before the last part; a colon says otherwise
    (``vllm.v1.worker.gpu_worker.Worker.load_model``, ``pkg.module:lower.method``).
    ``moved`` are the names that the same function has in other releases; a patch is
    for the first of all names that defines it.
    ``aliases`` are the dotted names of from-import copies, to be re-bound too, of
    whichever of these releases.
    ``forms`` are the looks that the wrapper was written for, any one of which will
    do; ``fixed`` is the look of the function once upstream has repaired it.
    """

    name: str
    wrapper: Wrapper
    forms: tuple[Fingerprint, ...]
    fixed: Fingerprint | None = None
    aliases: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.forms:
            raise ValueError(f"{self.name}: a target needs at least one fingerprint")

    @property
    def places(self) -> tuple[str, ...]:
        """All names that the function may have, in the order of trying them."""
        return (self.name, *self.moved)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that may define it, in the same order."""
        return tuple(split_name(place)[0] for place in self.places)


@dataclass(frozen=True)
class Patch:
    """A correction of upstream, a hook point of specshim, or an aid.

    ``kind`` is "patch"; "hook", without which a route does not work; or "aid", which
    keeps a promise that goes beyond right states: in place in the processes of every
    server that extracts, which runs without it where it is refused.

    ``affects`` is closed at both ends, best with the first fixed release as the
    open upper bound, so that post releases of the last faulty one stay inside.
    ``remove_when`` is a requirement ("vllm>=0.31.0"): once the oldest supported
    release meets it, the module can go. It is OPEN while no release has the repair;
    the contract test on the newest one turns red when that changes.
    """

    id: str
    summary: str
    why: str  # symptom first
    upstream: tuple[str, ...]  # issues and pull requests, "vllm#56841"
    affects: SpecifierSet
    targets: tuple[Target, ...]
    processes: tuple[str, ...]
    remove_when: str = ""
    see: str = ""  # how a user sees whether the fault is theirs, or gone
    kind: str = "patch"
    rung: str = "wrap"
    why_not_lower: str = ""

    def __post_init__(self) -> None:
        problem = _first_problem(self)
        if problem:
            raise ValueError(f"patch {self.id!r}: {problem}")

    @property
    def range(self) -> str:
        """The affected releases, lower bound first: ``>=0.24.0,<0.31.0``."""
        return ",".join(sorted(map(str, self.affects), reverse=True))

    @property
    def package(self) -> str:
        """The top-level package that is patched."""
        return self.targets[0].name.partition(".")[0]


def split_name(name: str) -> tuple[str, str]:
    """Module and qualified name within it, of a dotted name (see ``Target``)."""
    module, colon, qualname = name.partition(":")
    if colon:
        return module, qualname
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part.lstrip("_")[:1].isupper():
            return ".".join(parts[:index]), ".".join(parts[index:])
    return ".".join(parts[:-1]), parts[-1]


def _first_problem(patch: Patch) -> str | None:
    operators = {spec.operator for spec in patch.affects}
    places = [place for target in patch.targets for place in target.places]
    packages = {place.partition(".")[0] for place in places}
    checks = (
        (not operators & LOWER, "affects has no lower bound"),
        (not operators & UPPER, "affects has no upper bound"),
        (len(packages) != 1, "its targets must lie in one package"),
        (not set(patch.processes) <= set(PROCESSES), f"processes not in {PROCESSES}"),
        (not patch.processes, "processes is empty"),
        (patch.kind not in KINDS, f"kind not in {KINDS}"),
        (
            patch.kind == "patch" and not patch.remove_when,
            "remove_when is empty, so nobody would know when it can go",
        ),
        (patch.rung not in RUNGS, f"rung not in {RUNGS}"),
        (
            patch.rung != RUNGS[0] and not patch.why_not_lower,
            "a rung above wrap must say in why_not_lower why wrapping will not do",
        ),
    )
    return next((text for wrong, text in checks if wrong), None)
