"""Stock extraction asked for in EngineArgs: what vLLM configures, and what we say."""

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / "contracts" / "checks"), str(TESTS)]


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            self.said.append(record.getMessage())


def configure(args: Any, count: int, rank: int) -> list[str]:
    """The INFO lines of specshim while process ``rank`` of ``count`` configures."""
    listener = Listener()
    logger = logging.getLogger("vllm.specshim")
    logger.addHandler(listener)
    args._api_process_count, args._api_process_rank = count, rank
    args.create_engine_config()
    logger.removeHandler(listener)
    return listener.said


def main() -> None:
    from stock_server import stock_arguments
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    arguments = stock_arguments(Path(tempfile.mkdtemp()))
    transfer = KVTransferConfig(**arguments.pop("kv_transfer_config"))
    args = AsyncEngineArgs(kv_transfer_config=transfer, **arguments)
    before = dict(vars(args))
    config = args.create_engine_config()
    report = {
        "module": config.kv_transfer_config.kv_connector_module_path,
        "role": config.kv_transfer_config.kv_role,
        "speculative": config.speculative_config is not None,
        "arguments kept": dict(vars(args)) == before,
        "alone": configure(args, 1, 0),
        "parent": configure(args, 2, -1),
        "API server": configure(args, 2, 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
