"""The plugin adds less than 0.3 s of computing to the start of a process of vLLM's."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
from benchmarks.startup import LIMIT_S

CODE = """
import json, time
import vllm, vllm.plugins
start = time.process_time()
from specshim.plugin import register
register()
print(json.dumps(time.process_time() - start))
"""


@pytest.mark.envs
def test_the_plugins_share_of_a_start(environment):
    said = environment("vllm-0.32.0").evaluate(CODE)
    assert 0 < json.loads(said.splitlines()[-1]) < LIMIT_S
