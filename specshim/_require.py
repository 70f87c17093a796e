"""What a training repo or an image asks of what is installed, in one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

    from specshim.detect import Environment


class RequirementNotMet(RuntimeError):
    """What is installed, or set, is not what was asked for; one sentence says what."""

    __module__ = "specshim"  # as users know it


def require(
    *,
    specshim: str | None = None,
    vllm: str | None = None,
    speculators: str | None = None,
    hs_connectors: str | None = None,
    torch: str | None = None,
    transformers: str | None = None,
    route: Literal["tap", "cache"] | None = None,
) -> None:
    """Fail early, with one sentence, where an environment is not as a script needs it.

    Nothing of what is asked about is imported. What is not asked about is not looked
    at. Pre-releases and local versions count as what their numbers say.

    Args:
        specshim: a version specifier of PEP 440 such as ``">=0.1,<0.2"``; so are
            ``vllm`` (whichever distribution provides it), ``speculators``,
            ``hs_connectors``, ``torch`` and ``transformers``.
        route: that servers of this environment, if their model allows it, extract on
            this route: vLLM is there, its hooks or patches fit, its processes will
            load specshim, and no variable says otherwise.

    Raises:
        RequirementNotMet: something is missing, or is another version.
        ValueError: the request itself cannot be read.
    """
    from specshim._version import __version__
    from specshim.detect import detect_environment

    asked = {
        "specshim": specshim,
        "vllm": vllm,
        "speculators": speculators,
        "hs_connectors": hs_connectors,
        "torch": torch,
        "transformers": transformers,
    }
    specifiers = {name: _specifier(name, text) for name, text in asked.items() if text}
    if route not in (None, "tap", "cache"):
        raise ValueError(f"route={route!r} is unknown; it takes 'tap' or 'cache'.")
    here = detect_environment()
    installed = {name: getattr(here, name, None) for name in asked}
    installed["specshim"] = __version__
    problems = _versions(specifiers, installed)
    first = next(problems, None)
    if first is None and route is not None:
        first = next(_route(route, here), None)
    if first is not None:
        raise RequirementNotMet(first)


def _specifier(name: str, text: str) -> SpecifierSet:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(text, prereleases=True)
    except InvalidSpecifier:
        raise ValueError(
            f"{name}={text!r} is no version specifier; write one like '>=0.20,<0.33'."
        ) from None


def _versions(
    specifiers: Mapping[str, SpecifierSet], installed: Mapping[str, str | None]
) -> Iterator[str]:
    import sys

    from packaging.version import InvalidVersion, Version

    for name, wanted in specifiers.items():
        version = installed[name]
        if version is None:
            yield (
                f"{name}{wanted} is required, and there is no {name} in this Python "
                f"({sys.executable}); install it there, or run the Python that has it."
            )
            continue
        try:
            fits = wanted.contains(Version(version))
        except InvalidVersion:
            yield f"{name}{wanted} is required; the {name} here says no version number."
            continue
        if not fits:
            yield (
                f"{name}{wanted} is required, and {name} {version} is installed; "
                "install a release in that range."
            )


def _route(route: str, here: Environment) -> Iterator[str]:
    """What keeps servers of this environment from this route."""
    from specshim import _vllm_facts as facts
    from specshim.detect.plugin import plugin_allowed, plugin_visible
    from specshim.planning import tap_obstacles

    head = f"The route {route} is required"
    if here.vllm is None:
        yield f"{head}, and there is no vllm in this Python; run it where vLLM is."
        return
    if (facts.release(here.vllm) or facts.OLDEST) < facts.OLDEST:
        yield f"{head}, and vLLM {here.vllm} is older than {facts.OLDEST_NAME}."
    if here.variables.get("SPECSHIM") == "0":
        yield f"{head}, and SPECSHIM=0 switches specshim off; unset it."
    asked = here.variables.get("SPECSHIM_ROUTE") or "auto"
    if asked not in ("auto", route):
        yield f"{head}, and SPECSHIM_ROUTE={asked} asks for another; unset it."
    if not plugin_visible():
        yield (
            f"{head}, and specshim is importable but not installed here, so vLLM "
            "will not load it; install it with pip or uv."
        )
    if not plugin_allowed(here.variables):
        yield (
            f"{head}, and VLLM_PLUGINS={here.variables['VLLM_PLUGINS']} leaves "
            "specshim out; add it to that list."
        )
    if route == "tap":
        for obstacle in tap_obstacles(here):
            yield f"{head}, and {obstacle}."
    for found in here.patches:
        if route == "cache" and found.kind != "aid" and found.verdict == "REFUSED":
            yield f"{head}, and {found.id} is refused: {found.reason}"
