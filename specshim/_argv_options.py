"""The options of vLLM's command line that a plan depends on, and their spellings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """An option that a plan depends on. ``kind``: "json", "bool", "int" or "str".

    With ``lone`` it may stand without a value, which then is True.
    """

    field: str  # of EngineArgs, or of the serve command
    kind: str
    short: str | None = None
    written: str | None = None  # how the launcher writes it; None: with dashes
    lone: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.field.replace("_", "-")


OPTIONS = (
    Option("kv_transfer_config", "json", written="--kv_transfer_config"),
    Option("speculative_config", "json", "-sc", written="--speculative_config"),
    Option("additional_config", "json"),
    Option("compilation_config", "json", "-cc"),
    Option("kv_events_config", "json"),
    Option("spec_method", "str"),
    Option("spec_model", "str"),
    Option("spec_tokens", "int"),
    Option("enable_prefix_caching", "bool"),
    Option("enable_chunked_prefill", "bool"),
    Option("disable_hybrid_kv_cache_manager", "bool"),
    Option("pipeline_parallel_size", "int", "-pp"),
    Option("prefill_context_parallel_size", "int", "-pcp"),
    Option("enable_dbo", "bool"),
    Option("ubatch_size", "int"),
    Option("enable_hc_sp", "bool"),
    Option("kv_sharing_fast_prefill", "bool"),
    Option("distributed_executor_backend", "str"),
    Option("data_parallel_backend", "str", "-dpb"),
    Option("trust_remote_code", "bool"),
    Option("model", "str"),
    Option("revision", "str"),
    Option("hf_token", "str", lone=True),
    Option("hf_config_path", "str"),
    Option("hf_overrides", "json"),
    Option("headless", "bool"),
    Option("grpc", "bool"),
    Option("api_server_count", "int", "-asc"),
    Option("data_parallel_multi_port_external_lb", "bool", "-dpm"),
)
REWRITTEN = ("kv_transfer_config", "speculative_config", "additional_config")

BY_FIELD = {option.field: option for option in OPTIONS}
_SPELLINGS: dict[str, tuple[Option, bool]] = {
    spelling: (option, spelling != "--no-" + option.flag[2:])
    for option in OPTIONS
    for spelling in (
        option.flag,
        *([option.short] if option.short else []),
        *(["--no-" + option.flag[2:]] if option.kind == "bool" else []),
    )
}
_OPTIONS_OF_THEIR_OWN = frozenset({"-dp"})
"""Options that are no abbreviation, though one of ours begins with them."""


def find_option(key: str) -> tuple[Option, bool] | None:
    """The option that a key before ``=`` and ``.`` means, and whether it says yes."""
    if not key.startswith("-") or key in ("-", "--"):
        return None
    if key.startswith("--"):
        key = key.replace("_", "-")
    if key in _SPELLINGS:
        return _SPELLINGS[key]
    if key in _OPTIONS_OF_THEIR_OWN:
        return None
    matches = {_SPELLINGS[s] for s in _SPELLINGS if s.startswith(key)}
    return matches.pop() if len(matches) == 1 else None
