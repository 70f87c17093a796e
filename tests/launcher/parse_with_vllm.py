"""Run by the Python of a vLLM environment: parses command lines as vLLM does.

Reads a JSON list of argument lists on stdin, prints a JSON list of the values, or the
string "refused" where vLLM exits.
"""

import contextlib
import dataclasses
import enum
import functools
import io
import json
import sys

from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser


def plain(value):
    if dataclasses.is_dataclass(value):
        return {
            f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else repr(value)


@functools.cache
def parser_of(command):
    if command == "serve":
        parser = FlexibleArgumentParser(prog="vllm")
        make_arg_parser(parser.add_subparsers().add_parser("serve"))
        return parser
    return make_arg_parser(FlexibleArgumentParser(prog="api_server"))


def parse(arguments):
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return plain(vars(parser_of(arguments[0]).parse_args(arguments)))
    except SystemExit:
        return "refused"


if __name__ == "__main__":
    answers = [parse(arguments) for arguments in json.load(sys.stdin)]
    with open(sys.argv[1], "w") as file:
        json.dump(answers, file)
