"""The YAML file of vLLM's --config option, as the arguments that vLLM makes of it."""

from __future__ import annotations

import json
import os
from typing import Any


def read_config_file(
    path: str, *, ignore_false: bool = False
) -> tuple[list[str], str | None]:
    """The file's options as arguments, and a sentence where it cannot be read.

    ``key: true`` becomes ``--key``, ``key: false`` becomes ``--no-key`` (nothing with
    ``ignore_false``), lists several values, and dicts JSON.
    """
    if path.rsplit(".", 1)[-1] not in ("yaml", "yml"):
        return [], f"--config {path} is not a .yaml file; vLLM takes no other."
    try:
        import yaml
    except ImportError:
        return [], (
            f"--config {path} cannot be read without PyYAML, which vLLM's environment "
            "has; run this with that environment's python."
        )
    try:
        if not os.path.isfile(path):  # a FIFO would have us wait
            return [], f"--config {path} is not a file."
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except RecursionError:
        return [], f"--config {path} is nested too deeply."
    except yaml.YAMLError as error:
        return [], f"--config {path} is not valid YAML: {' '.join(str(error).split())}."
    except (OSError, ValueError, OverflowError) as error:  # of a date, say
        return [], f"--config {path} cannot be read: {error}."
    if not isinstance(content, dict):
        return [], f"--config {path} does not hold `option: value` lines."
    arguments: list[str] = []
    for key, value in content.items():
        try:
            arguments += _arguments(f"--{key}", value, ignore_false=ignore_false)
        except (TypeError, ValueError, RecursionError):  # what JSON cannot hold
            return [], f"--config {path}: the value of {key} cannot be an argument."
    return arguments, None


def _arguments(flag: str, value: Any, *, ignore_false: bool) -> list[str]:
    if isinstance(value, bool):
        if value:
            return [flag]
        return [] if ignore_false else ["--no-" + flag[2:]]
    if isinstance(value, list):
        return [flag, *map(str, value)] if value else []
    if isinstance(value, dict):
        return [flag, json.dumps(value, default=str)]
    return [flag, str(value)]
