"""The contract of each patch: a check that upstream fails, and passes with the patch.

``tests/contracts/checks`` holds the checks. Where a release is said to have a fault
repaired, the check passes there without us.
"""

from __future__ import annotations

from dataclasses import dataclass

EVERY_RUN = frozenset(
    {
        "vllm-0.20.1",
        "vllm-0.22.1",
        "vllm-0.24.0",
        "vllm-0.32.0",
        "speculators-0.6.0",
        "speculators-0.7.0.2",
        "speculators-0.9.0",
        "hs_connectors-0.9.0",
    }
)
"""Where most forms of upstream's code are at hand; `nox -s extended` tries the others,
and what needs an engine or a process of its own."""


@dataclass(frozen=True)
class Contract:
    """One check of one or more patches.

    ``fault`` is what a line of the error starts with where upstream shows the fault;
    any other failure is an error of the check itself. ``affected`` has one release
    for each form of upstream's code, and the newest one while no release has the
    repair; ``mended`` is the first tested release that has it. ``without`` are
    patches that stay out of the way, as they hide the fault. ``alone``: upstream cannot
    run the check at all without the other patches, so that only these are switched
    off to see it fail. ``own``: the check needs a process to itself.
    """

    check: str
    patches: tuple[str, ...]
    fault: str
    affected: tuple[str, ...]
    mended: str | None = None
    without: tuple[str, ...] = ()
    alone: bool = False
    own: bool = False


def _vllm(*releases: str) -> tuple[str, ...]:
    return tuple(f"vllm-{release}" for release in releases)


def _trainer(
    patch: str,
    fault: str,
    *releases: str,
    also: tuple[str, ...] = (),
    mended: str | None = None,
) -> Contract:
    """A check that has the name of its patch."""
    return Contract(
        patch.replace("-", "_"), (patch, *also), fault, releases, mended
    )  # fmt: skip


ZEROS = "AssertionError: zeros were taken for a sample"
NFS = "OSError: [Errno 9] Bad file descriptor"
EARLY_ROWS = ("prefix-cache-cross-request", "batch-order-offset")
SPECULATORS, HS = "speculators-", "hs_connectors-"

CONTRACTS = (
    Contract(
        "hybrid_zero_states",
        ("hybrid-zero-states",),
        "rows of others",
        _vllm("0.24.0"),
        "vllm-0.25.1",
    ),
    Contract(
        "prefix_cache_cross_request",
        ("prefix-cache-cross-request",),
        "AssertionError: alone: 2 rows for 34 tokens; first: rows 0 to 34 are not its",
        _vllm("0.22.1"),
        "vllm-0.24.0",
    ),
    Contract(
        "batch_order_offset",
        ("batch-order-offset",),
        "AssertionError: later: rows 0 to 19 are not its own",
        _vllm("0.22.1"),
        "vllm-0.24.0",
    ),
    Contract(
        "padding_slot_overwrite",
        ("padding-slot-overwrite",),
        "AssertionError: last: rows 47 to 47 are not its own",
        _vllm("0.18.1", "0.24.0"),
        "vllm-0.25.1",
    ),
    Contract(
        "chunk_tail_stale",
        ("chunk-tail-stale",),
        "AssertionError: chunked: rows 33 to 34 are not its own",
        _vllm("0.18.1", "0.21.0"),
    ),
    Contract(
        "resumed_blocks_stale",
        ("resumed-blocks-stale",),
        "AssertionError: preempted: rows ",
        _vllm("0.20.1"),
    ),
    Contract(
        "last_layer_missing",
        ("last-layer-missing", "layers-not-as-asked"),
        "AssertionError: layer 4 in both places",
        _vllm("0.24.0"),
        "vllm-0.32.0",
        alone=True,
        own=True,
    ),
    Contract(
        "layers_not_as_asked",
        ("layers-not-as-asked",),
        "AssertionError: layer 1 was kept in the place of layer 4",
        _vllm("0.20.1", "0.32.0"),  # the drafter's two signatures
    ),
    Contract(
        "no_eagle3_interface",
        ("no-eagle3-interface",),
        "RuntimeError: Engine core initialization failed",
        _vllm("0.32.0"),
        alone=True,
        own=True,
    ),
    Contract(
        "unlabelled_files",
        ("unlabelled-files",),
        "the file has no labels",
        # Each way of writing, and both layouts of the cache that is read.
        _vllm("0.20.1", "0.22.1", "0.24.0", "0.32.0"),
    ),
    Contract(
        "tp_write_race",
        ("tp-write-race",),
        "AssertionError: rank 1 has written",
        _vllm("0.20.1", "0.22.1"),
        "vllm-0.24.0",
        own=True,
    ),
    Contract(
        "abort_before_schedule",
        ("abort-before-schedule",),
        "KeyError: 'waiting'",
        _vllm("0.24.0", "0.30.0"),
        "vllm-0.31.0",
    ),
    Contract(
        "stale_finish",
        ("stale-finish-assert",),
        "the scheduler insists on knowing the request",
        # The connector reports what was never scheduled up to 0.30; the asserts are
        # in all releases.
        _vllm("0.24.0", "0.32.0"),
    ),
    Contract(
        "multi_connector_never_frees",
        ("multi-connector-never-frees",),
        "blocks are never freed: ['one', 'other']",
        _vllm("0.31.0", "0.32.0"),
    ),
    Contract(
        "lock_and_file_leak",
        ("lock-and-file-leak",),
        "left behind",
        # Saved in the forward, by writer threads at the request's end.
        _vllm("0.20.1", "0.24.0", "0.32.0"),
        # They would leave out the half computed prompt of themselves.
        without=EARLY_ROWS,
    ),
    Contract(
        "lock_and_file_leak",
        ("lock-and-file-leak",),
        "left behind",
        # By writer threads in the forward's step. No prompt is computed by halves here.
        _vllm("0.22.1"),
    ),
    Contract(
        "full_disk",
        ("full-disk-stops-engine",),
        "safetensors._safetensors_rust.SafetensorError",  # the error leaves the forward
        _vllm("0.20.1"),
    ),
    Contract(
        "full_disk",
        ("half-written-files",),
        "left behind",
        _vllm("0.22.1", "0.24.0", "0.32.0"),
    ),
    Contract(
        "request_ids_as_paths",
        ("request-ids-as-paths",),
        "the engine ends",
        _vllm("0.20.1", "0.22.1"),
    ),
    Contract(
        "request_ids_as_paths",
        ("request-ids-as-paths",),
        "written elsewhere",
        _vllm("0.24.0", "0.32.0"),
    ),
    Contract(
        "inproc_never_flushed",
        ("inproc-never-flushed",),
        "never written",
        _vllm("0.24.0", "0.32.0"),
    ),
    Contract(
        "inproc_llm",
        ("inproc-never-flushed",),
        "never written",
        _vllm("0.32.0"),
        alone=True,
        own=True,
    ),
    Contract(
        "tp_page_assert",
        ("tp-page-assert",),
        "stopped in page_size_bytes",
        _vllm("0.22.1", "0.29.0"),
        "vllm-0.30.0",
    ),
    Contract(
        "scaled_page_unpadded_mamba",
        ("scaled-page-unpadded-mamba",),
        "pages of [8192, 40960]",
        _vllm("0.32.0"),
    ),
    Contract(
        "scaled_page_mamba_states",
        ("scaled-page-unpadded-mamba",),
        "a state of",
        _vllm("0.32.0"),
    ),
    Contract(
        "group_width_billing",
        ("group-width-billing",),
        "hidden states of 4.5 GiB cost 103.",
        _vllm("0.26.0", "0.32.0"),
    ),
    Contract(
        "deepseek_v4_inflation",
        ("deepseek-v4-inflation",),
        "hidden states of 0.25 GiB cost ",
        _vllm("0.26.0", "0.28.0", "0.32.0"),
    ),
    Contract(
        "mla_verifier_group_lookup",
        ("mla-verifier-group-lookup",),
        "ValueError: Could not uniquely identify",
        _vllm("0.28.0"),
        "vllm-0.29.0",
    ),
    _trainer(
        "mla-verifier-group-lookup-mooncake",
        "ValueError: Could not uniquely identify",
        f"{HS}0.8.0",  # on vLLM 0.28
        mended=f"{HS}0.9.0",  # on vLLM 0.32, which makes a group of its own
    ),
    Contract(
        "lcm_hash_assert",
        ("lcm-hash-assert",),
        "hashed at 1, found at 98464 tokens",
        _vllm("0.26.0"),
        "vllm-0.28.0",
    ),
    Contract(
        "decode_shape",
        ("decode-shape",),
        "RuntimeError: output with shape [2, 1] doesn't match",
        _vllm("0.19.1"),
        "vllm-0.20.1",
    ),
    Contract(
        "fp8_kv_crash",
        ("fp8-kv-crash",),
        "AssertionError: CacheOnlyAttentionLayer doesn't currently support",
        _vllm("0.19.1"),
        "vllm-0.20.1",
    ),
    Contract(
        "vlm_text_config",
        ("vlm-text-config",),
        "ValueError: The text_config extracted from the model config",
        _vllm("0.19.1"),
        "vllm-0.20.1",
    ),
    Contract(
        "cpu_copy_stream",
        ("cpu-copy-stream",),
        "asks for CUDA",
        # Saved during the step, then at the end, then from a cache with other axes.
        _vllm("0.22.1", "0.24.0", "0.32.0"),
        own=True,  # others replace torch's streams
    ),
    Contract(
        "cpu_sampler_keywords",
        ("cpu-sampler-keywords",),
        "TypeError: _rejection_greedy_sample_kernel_impl() got an unexpected",
        _vllm("0.20.1"),
    ),
    Contract(
        "cpu_sampler_keywords",
        ("cpu-sampler-keywords",),
        "TypeError: _sample_recovered_tokens_kernel_impl() got an unexpected",
        _vllm("0.24.0"),
        "vllm-0.25.1",
    ),
    Contract(
        "cpu_aux_layers_unset",
        ("cpu-aux-layers-unset",),
        "RuntimeError: Worker failed with error 'too many values to unpack",
        _vllm("0.20.1"),
        own=True,
    ),
    Contract(
        "aborted_mooncake_sample",
        ("aborted-sample-fills-store",),
        "AssertionError: samples of aborted requests will be stored: ['running', 'wai",
        (f"{HS}0.8.1", f"{HS}0.9.0"),
    ),
    _trainer(
        "zero-states-in-the-cache",
        ZEROS,
        f"{SPECULATORS}0.5.0",
        f"{SPECULATORS}0.6.0",
        f"{SPECULATORS}0.9.0",
    ),
    _trainer(
        "zero-states-pass-validation",
        ZEROS,
        f"{SPECULATORS}0.7.0.2",
        f"{SPECULATORS}0.9.0",
    ),
    *(
        _trainer(
            "mislabelled-layers-and-stale-cache",
            "AssertionError: taken: [True, True, True, True, True, True]",
            f"{SPECULATORS}{release}",
            also=(served,),
        )
        for release, served in (
            ("0.6.0", "mislabelled-served-files-in-the-dataset"),
            ("0.7.0.2", "mislabelled-served-files-vendored"),
            ("0.9.0", "mislabelled-served-files"),
        )
    ),
    _trainer("nfs-flock", NFS, f"{SPECULATORS}0.6.0"),
    _trainer(
        "nfs-flock",
        NFS,
        f"{SPECULATORS}0.7.0",
        also=("nfs-flock-vendored",),
        mended=f"{SPECULATORS}0.7.0.2",
    ),
    _trainer(
        "online-lock-skip",
        "FileNotFoundError: No such file or directory",
        f"{SPECULATORS}0.5.0",
        mended=f"{SPECULATORS}0.6.0",
    ),
    _trainer(  # 0.7 has it mended, and takes other arguments
        "cache-dir", "FileNotFoundError: ", f"{SPECULATORS}0.5.0", f"{SPECULATORS}0.6.0"
    ),
    _trainer(
        "nan-kills-training",
        "ValueError: Hidden states contain NaN values",
        f"{SPECULATORS}0.7.0.2",
        mended=f"{SPECULATORS}0.9.0",
    ),
    _trainer(
        "missing-file-kills-training",
        "FileNotFoundError: No such file or directory: /dev/null/no hidden states: ",
        f"{SPECULATORS}0.5.0",
        mended=f"{SPECULATORS}0.6.0",
    ),
    _trainer(  # 0.6 has it mended, and takes other arguments
        "empty-sample-dtype", "AssertionError", f"{SPECULATORS}0.5.0"
    ),
    _trainer(  # each form of what loads the norm; 0.8 has that of 0.9
        "mis-scaled-targets",
        "AssertionError: Eagle3DraftModel for gemma3 is off by",
        f"{SPECULATORS}0.5.0",
        f"{SPECULATORS}0.7.0.2",
        f"{SPECULATORS}0.8.1",
        f"{SPECULATORS}0.9.0",
    ),
    _trainer(
        "lock-timeout",
        "TimeoutError: Timed out waiting for lock",
        f"{SPECULATORS}0.9.0",
    ),
    _trainer(
        "orphans-after-lock-timeout",
        "AssertionError: left behind: ",
        f"{SPECULATORS}0.9.0",
    ),
    _trainer(
        "orphans-after-lock-timeout-vendored",
        "AssertionError: left behind: ",
        f"{SPECULATORS}0.7.0.2",
    ),
    _trainer(
        "fp8-precision",
        "AssertionError: an unpatched reader is off by",
        f"{SPECULATORS}0.9.0",
        f"{HS}0.9.0",
    ),
    _trainer(
        "heads-before-slots", "IndexError: ", f"{HS}0.7.0", mended=f"{HS}0.9.0"
    ),
)  # fmt: skip
