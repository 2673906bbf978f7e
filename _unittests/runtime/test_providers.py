import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import onnxruntime
import pytest

from ortmeter import child
from ortmeter.errors import InvalidArgumentError, ProviderUnavailableError
from ortmeter.runtime import providers
from ortmeter.runtime.providers import (
    Provider,
    probe_providers,
    resolve_provider,
    usable_providers,
)

# What an onnxruntime that announces CUDA does on a machine without it: sessions run on CPU.
GPU_WHEEL_ON_CPU = """
import sys
class SessionOptions:
    def add_session_config_entry(self, key, value): pass
class InferenceSession:
    def __init__(self, model, options, providers, enable_fallback): pass
    def run(self, names, feeds): return [feeds["X"] @ feeds["X"]]
    def get_provider_graph_assignment_info(self): return [Part("CPUExecutionProvider")]
class Part:
    def __init__(self, ep_name): self.ep_name = ep_name
def get_available_providers(): return ["CUDAExecutionProvider", "CPUExecutionProvider"]
def get_ep_devices(): return []
package_name, __version__ = "onnxruntime-gpu", "1.31.1"
def preload_dlls(cuda=True, directory=None): pass
"""
CUDA_WORKS = GPU_WHEEL_ON_CPU.replace('Part("CPU', 'Part("CUDA')
CUDA_IS_WRONG = CUDA_WORKS.replace("@", "*")
LIBRARY_MISSING = GPU_WHEEL_ON_CPU.replace(
    "enable_fallback): pass",
    "enable_fallback):\n"
    "        sys.stderr.write('E: Failed to load library /x/lib.so with error: libx.so.13: gone')\n"
    "        raise RuntimeError('fallback is disabled')",
)
NOT_PRELOADED = LIBRARY_MISSING.replace(
    "=None): pass", "=None): print('Failed to load liby.so.13: no such file')"
)
DIES_OF_IT = """
import os
os.write(2, b"E: Failed to load library /x/lib.so with error: gone")
os.abort()
"""


@pytest.fixture
def fresh_probe(monkeypatch, tmp_path):
    """Probe with a fake onnxruntime written by the test."""

    def probe(code):
        (tmp_path / "onnxruntime.py").write_text(code)
        first = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"  # before the true one
        monkeypatch.setattr("ortmeter.child._BOOT", first + child._BOOT)
        return providers._probe("cuda")[0]

    return probe


@pytest.mark.parametrize(
    ("text", "expected", "written"),
    [
        ("cpu", Provider("cpu", 0), "cpu"),
        ("cuda", Provider("cuda", 0), "cuda"),
        ("cuda:0", Provider("cuda", 0), "cuda"),
        ("cuda:12", Provider("cuda", 12), "cuda:12"),
    ],
)
def test_names_are_read_and_written(text, expected, written):
    assert Provider.parse(text) == expected
    assert str(expected) == written


@pytest.mark.parametrize("text", ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cpu:1", "cpu\n", None])
def test_other_names_are_refused(text):
    with pytest.raises(InvalidArgumentError, match="Accepted: auto, cpu, cuda, cuda:1"):
        resolve_provider(text)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (CUDA_WORKS, ""),
        # the silent fallback
        (GPU_WHEEL_ON_CPU, "the session runs on CPUExecutionProvider"),
        # the CPU wheel
        (GPU_WHEEL_ON_CPU.replace('"CUDAExecutionProvider", ', ""), "CPU wheel"),
        # a provider that computes nonsense
        (CUDA_IS_WRONG, "is wrong on CUDA"),
        # the cause is in what the libraries wrote
        (LIBRARY_MISSING, "libx.so.13: gone"),
        # what ONNX Runtime itself looked for comes first, with the places
        (NOT_PRELOADED, "liby.so.13 cannot be loaded (looked for in "),
        # a driver that kills the process, and may have said why
        (DIES_OF_IT, "gone"),
        ("import sys; print('[]'); sys.exit(3)", "died with exit code 3"),
        ("raise ImportError('broken wheel')", "broken wheel"),
    ],
)
def test_the_probe_tells_the_truth(fresh_probe, code, reason):
    found = fresh_probe(code)
    assert bool(found) is bool(reason)
    assert reason in found


@pytest.fixture
def two_sites(monkeypatch, tmp_path):
    """NVIDIA's wheels in two folders, and an onnxruntime that knows no folder by itself."""
    for folder in ("torch_site/nvidia/cu13/lib", "other_site/nvidia/cudnn/lib"):
        (tmp_path / folder).mkdir(parents=True)
        monkeypatch.syspath_prepend(str(tmp_path / folder.partition("/")[0]))
    (tmp_path / "torch_site/nvidia/cu13/lib/libcublas.so.13").touch()
    wanted, loaded = ["libcublas.so.13", "libcurand.so.10"], set()

    def preload_dlls(*, cuda=True, directory=None):
        if not cuda:  # cuDNN alone, of which nothing is said
            sys.stderr.write(f"cuDNN of {directory}\n")
            return
        for name in wanted:
            if directory and Path(directory, name).exists():
                loaded.add(name)
            if name not in loaded:
                sys.stdout.write(f"Failed to load {name}: {name}: cannot open it\n")
        if not loaded.issuperset(wanted):
            sys.stdout.write("Please follow the documentation\n")

    monkeypatch.setattr(onnxruntime, "preload_dlls", preload_dlls)
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    return tmp_path


@pytest.mark.parametrize("found", [True, False])
def test_cudnn_is_looked_for_though_nothing_says_that_it_is_missing(
    two_sites, monkeypatch, capsys, found
):
    monkeypatch.setattr(providers, "_is_found", lambda library: found and "cudnn" in library)
    providers.load_cuda_libraries()
    looked = [line.split()[-1] for line in capsys.readouterr().err.splitlines()]
    assert (str(two_sites / "other_site/nvidia/cudnn/lib") in looked) is not found


def test_libraries_are_loaded_from_every_folder_of_the_wheels(two_sites, capsys):
    said = providers.load_cuda_libraries()
    assert said.startswith("libcurand.so.10 cannot be loaded")
    for folder in ("torch_site/nvidia/cu13/lib", "other_site/nvidia/cudnn/lib"):
        assert str(two_sites / folder) in said
    (two_sites / "other_site/nvidia/cudnn/lib/libcurand.so.10").touch()
    assert not providers.load_cuda_libraries()
    assert not capsys.readouterr().out


def test_the_probe_agrees_with_the_driver_of_this_machine():
    has_gpu = (
        shutil.which("nvidia-smi") is not None
        and subprocess.run(["nvidia-smi", "-L"], check=False, capture_output=True).returncode == 0  # noqa: S607
    )
    if not has_gpu:
        assert usable_providers() == ("cpu",)
        assert probe_providers()["cuda"]


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """Write the nvidia-smi that this process finds first; what is known of the other is lost."""

    def write(script):
        file = tmp_path / "bin" / "nvidia-smi"
        file.parent.mkdir()
        file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", os.pathsep.join([str(file.parent), os.environ["PATH"]]))

    caches = providers._lists_gpu, providers._warn_of_cpu_wheel
    for cache in caches:
        cache.cache_clear()
    yield write
    for cache in caches:
        cache.cache_clear()


LISTS_A_GPU = '[ "$1" = -L ] && echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)"'
NO_DEVICE = 'echo "No devices were found"; exit 6'


def test_auto_never_leaves_a_gpu_that_its_wheel_is_for(monkeypatch, driver):
    """The numbers of a CPU would be published as those of the machine."""
    driver(LISTS_A_GPU)
    reasons = {"cpu": "", "cuda": "libcublasLt.so.13 cannot be loaded"}
    monkeypatch.setattr(providers, "probe_providers", lambda: reasons)
    for _ in range(2):
        with pytest.raises(ProviderUnavailableError) as refused:
            resolve_provider("auto")
    for told in ("libcublasLt.so.13 cannot be loaded", "make PROVIDER=cpu", "--provider cpu"):
        assert told in str(refused.value)
    assert resolve_provider("cpu") == Provider("cpu")


@pytest.mark.parametrize("script", [NO_DEVICE, None])
def test_auto_is_the_cpu_where_no_gpu_is_listed(monkeypatch, driver, script):
    if script:
        driver(script)
    else:
        monkeypatch.setenv("PATH", "")
    reasons = {"cpu": "", "cuda": "no driver"}
    monkeypatch.setattr(providers, "probe_providers", lambda: reasons)
    assert resolve_provider("auto") == Provider("cpu")


def test_the_cpu_wheel_leaves_a_gpu_with_one_warning(monkeypatch, driver):
    driver(LISTS_A_GPU)
    reasons = {"cpu": "", "cuda": providers.NO_CUDA}
    monkeypatch.setattr(providers, "probe_providers", lambda: reasons)
    with pytest.warns(UserWarning, match="lists a GPU, but .* CPU wheel") as told:
        found = [resolve_provider("auto"), resolve_provider("auto")]
    assert found == [Provider("cpu")] * 2
    assert len(told) == 1
    # Without any wheel, what runs needs none.
    monkeypatch.setattr(providers, "probe_providers", lambda: dict.fromkeys(reasons, "missing"))
    assert resolve_provider("auto") == Provider("cpu")


def test_cuda_asked_for_without_cuda_says_why(monkeypatch):
    monkeypatch.setattr(providers, "_lists_gpu", lambda: False)
    reasons = {"cpu": "", "cuda": "the moon is full"}
    monkeypatch.setattr(providers, "probe_providers", lambda: reasons)
    with pytest.raises(
        ProviderUnavailableError, match=r"'cuda:1'.*the moon is full.*ortmeter\[gpu"
    ):
        resolve_provider("cuda:1")
    assert resolve_provider("auto") == Provider("cpu")


def test_auto_prefers_cuda_when_it_works(monkeypatch):
    monkeypatch.setattr(providers, "probe_providers", lambda: {"cpu": "", "cuda": ""})
    assert resolve_provider("auto") == Provider("cuda")
    assert resolve_provider("cuda:1") == Provider("cuda", 1)
    assert resolve_provider("cuda:1").label == "CUDA:1"


def test_without_onnxruntime_nothing_is_usable(monkeypatch):
    monkeypatch.setattr(providers.importlib.util, "find_spec", lambda name: None)
    reasons = probe_providers.__wrapped__()
    assert all(reasons.values())
    assert "ortmeter[cpu]" in reasons["cpu"]


@pytest.mark.parametrize(
    "library", ["", "libonnxruntime_providers_cuda.so", "onnxruntime_providers_cuda.dll"]
)
def test_only_a_wheel_that_has_the_cuda_provider_is_probed(monkeypatch, tmp_path, library):
    capi = tmp_path / "onnxruntime" / "capi"
    capi.mkdir(parents=True)
    (capi / "libonnxruntime_providers_shared.so").touch()
    if library:
        (capi / library).touch()
    wheel = SimpleNamespace(submodule_search_locations=[str(capi.parent)])
    monkeypatch.setattr(providers.importlib.util, "find_spec", lambda name: wheel)
    monkeypatch.setattr(providers, "_probe", lambda provider: ("probed", ""))
    expected = "probed" if library else providers.NO_CUDA
    assert probe_providers.__wrapped__() == {"cpu": "", "cuda": expected}


def test_a_probe_that_hangs_is_reported(fresh_probe, monkeypatch):
    monkeypatch.setattr(providers, "_PROBE_TIMEOUT_S", 2)
    assert "the probe did not answer" in fresh_probe("import time; time.sleep(10)")


@pytest.mark.cuda
def test_cuda_is_usable():
    assert resolve_provider("auto").name == "cuda"
