"""vLLM's own list of decoder architectures, read from its source: registry.json.

python tests/families/registry.py PATH_TO_PYTHON_OF_A_VLLM_ENVIRONMENT
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

REGISTRY = Path(__file__).with_name("registry.json")
TABLES = {
    "_TEXT_GENERATION_MODELS": "text",
    "_MULTIMODAL_MODELS": "multimodal",
    "_TRANSFORMERS_SUPPORTED_MODELS": "transformers backend",
}
_FIND = (
    "import importlib.util, pathlib; "
    "print(pathlib.Path(importlib.util.find_spec('vllm').origin).parent)"
)
_RELEASE = (
    "import ast, importlib.util, pathlib; "
    "from importlib.metadata import packages_distributions, version; "
    "print(version(packages_distributions()['vllm'][0]))"
)


def read_registry(python: str) -> dict[str, object]:
    """Release, and kind -> architecture -> "module:class"; vLLM is not imported."""
    folder, release = (
        subprocess.run(
            [python, "-c", code], check=True, capture_output=True, text=True
        ).stdout.strip()
        for code in (_FIND, _RELEASE)
    )
    source = Path(folder, "model_executor", "models", "registry.py").read_text()
    found: dict[str, object] = {"release": release}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            kind = TABLES.get(node.targets[0].id)
            if kind is not None and isinstance(node.value, ast.Dict):
                table = ast.literal_eval(node.value)
                found[kind] = {name: ":".join(table[name]) for name in sorted(table)}
    return found


if __name__ == "__main__":
    REGISTRY.write_text(json.dumps(read_registry(sys.argv[1]), indent=1) + "\n")
