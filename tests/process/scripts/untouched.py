"""A server without extraction: what vLLM configures with and without our wrapper."""

import json
import logging
import os
import re
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

HOOKS = ("reroute", "tap-loaded-model")
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}


def shown(config: object) -> str:
    """All of the configuration but the instance id, which vLLM draws at random."""
    return re.sub(r"instance_id='\w+'", "instance_id", repr(config))


if __name__ == "__main__":
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logging.getLogger("vllm.specshim").addHandler(Listener(logging.INFO))
    from vllm.engine.arg_utils import EngineArgs

    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(CONFIG))
    args = EngineArgs(model=str(folder), skip_tokenizer_init=True)
    wrapped = vars(EngineArgs)["create_engine_config"]
    ours = shown(args.create_engine_config())
    theirs = shown(wrapped.__wrapped__(args))

    from specshim import status

    patched = [id for id in status()["installed"] if id not in HOOKS]
    print(json.dumps({"same": ours == theirs, "said": said, "patched": patched}))
    sys.stdout.flush()
