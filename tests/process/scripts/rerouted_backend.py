"""hs_connectors' FP8 and Mooncake connectors asked for in EngineArgs, as its own
backends configure them: what vLLM configures, or why it does not."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / "contracts" / "checks"), str(TESTS)]


def configured(name: str, *flags: str) -> Any:
    """The kv_transfer_config that is left, or the sentence of the refusal."""
    from hs_connectors import HiddenStatesBackend
    from stock_server import stock_arguments
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    parser = argparse.ArgumentParser()
    backend = HiddenStatesBackend.registry[name]
    backend.add_launch_args(parser)
    built = backend.build_kv_transfer_config(parser.parse_args(flags))
    arguments = stock_arguments(Path(tempfile.mkdtemp()))
    arguments["kv_transfer_config"] = KVTransferConfig(**built)
    try:
        config = EngineArgs(**arguments).create_engine_config()
    except ValueError as error:
        return str(error)
    kept = config.kv_transfer_config
    return [kept.kv_connector_module_path, kept.kv_connector_extra_config]


def main() -> None:
    report = {
        "fp8": configured("fp8", "--hidden-states-path", "/data"),
        "mooncake": configured("mooncake", "--mooncake-master", "127.0.0.1:9"),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
