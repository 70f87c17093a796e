"""The look of an upstream function: from the live object, or from a source tree."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

from specshim.patching.declaration import Form


def form_of(function: Any) -> Form:
    """The form of a live function; descriptors and wrappers are looked through."""
    function = getattr(function, "__func__", function)
    try:
        parameters = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        parameters = ()
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = ""
    return Form(parameters, _one_line(source))


def form_in_tree(root: Path, module: str, qualname: str) -> Form | None:
    """The form of ``module.qualname`` as written under ``root``, not imported.

    ``root`` is the folder that holds the top-level package. None where the file,
    or the definition in it, does not exist (an inherited method has none).
    """
    path = root.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            break
    else:
        return None
    text = file.read_text(encoding="utf-8")
    body: list[ast.stmt] = ast.parse(text).body
    node: ast.stmt | None = None
    for part in qualname.split("."):
        named = (n for n in body if getattr(n, "name", None) == part)
        node = next((n for n in named if not _is_overload(n)), None)
        if node is None:
            return None
        body = getattr(node, "body", [])
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    return Form(_parameters(node.args), _one_line("\n".join(lines)))


def _is_overload(node: ast.stmt) -> bool:
    """A signature for type checkers, in front of the function itself."""
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(d).endswith("overload") for d in decorators)


def _parameters(args: ast.arguments) -> tuple[str, ...]:
    found = [*args.posonlyargs, *args.args]
    found += [args.vararg] if args.vararg else []
    found += args.kwonlyargs
    found += [args.kwarg] if args.kwarg else []
    return tuple(a.arg for a in found)


def _one_line(source: str) -> str:
    return " ".join(source.split())
