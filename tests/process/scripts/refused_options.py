"""Runs in a vLLM environment: how far engine arguments get, one set after another.

Argument: {"base": {...}, "options": [{...}, ...]}; prints per set a JSON line:
the text of the exception, or null.
"""

import json
import sys

from vllm.engine.arg_utils import EngineArgs

import specshim.plugin

specshim.plugin.register()
job = json.loads(sys.argv[1])
for options in job["options"]:
    try:
        EngineArgs(**job["base"], **options).create_engine_config()
        said = None
    except Exception as error:
        said = str(error)
    print("SAID " + json.dumps(said), flush=True)
