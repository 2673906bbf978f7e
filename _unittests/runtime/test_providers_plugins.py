import sys
from pathlib import Path

import onnxruntime
import pytest
from processes import run_python

from ortmeter.errors import InvalidArgumentError, ProviderUnavailableError
from ortmeter.runtime import providers
from ortmeter.runtime.providers import Provider, full_name, probe_providers, resolve_provider
from ortmeter.runtime.sessions import make_session

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] X) => (float[n] Y) { Y = Abs(X) }"""
ENGINE = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_shared.so"
PACKAGE = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
def get_library_path(): return {library!r}
"""


@pytest.mark.parametrize("name", onnxruntime.get_all_providers())
def test_any_provider_of_onnxruntime_has_a_name(name):
    short = name.removesuffix("ExecutionProvider").lower()
    provider = Provider.parse(short)
    assert provider.execution_provider == name
    assert str(provider) == short
    assert provider.is_cpu is (name == "CPUExecutionProvider")


def test_a_library_is_a_file_that_other_processes_find(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    provider = Provider.parse("webgpu:1=lib/my=plugin.so")
    assert (provider.name, provider.index) == ("webgpu", 1)
    assert provider.library == str(tmp_path / "lib/my=plugin.so")
    monkeypatch.chdir("/")
    assert Provider.parse(str(provider)) == provider
    assert provider.place == "webgpu:1"  # what a record keeps
    for text in ("webgpu=", "=lib.so", "cpu=lib.so", "WebGPU", "nothing"):
        with pytest.raises(InvalidArgumentError, match="is not known. Accepted: auto, cpu"):
            Provider.parse(text)


def test_the_names_of_packages_are_those_of_onnxruntime():
    names = ["CPUExecutionProvider", "NvTensorRTRTXExecutionProvider"]
    assert full_name("nv-tensorrt-rtx", names) == names[1]
    assert not full_name("nv", names)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # in the wheel, where it takes no product: the strict session is refused
        ("azure", "disabled by the user"),
        # neither in the wheel nor in a package
        (
            "qnn",
            "has AzureExecutionProvider, CPUExecutionProvider, and the package onnxruntime-ep-qnn",
        ),
        ("qnn=/nowhere/lib.so", "/nowhere/lib.so: cannot open shared object file"),
        (f"qnn={__file__}", "invalid ELF header"),
        (f"qnn={ENGINE}", "CreateEpFactories"),
    ],
)
def test_the_probe_says_why_a_provider_does_not_work(text, told):
    with pytest.raises(ProviderUnavailableError, match="does not work here") as refused:
        resolve_provider(text)
    assert told in str(refused.value)
    assert "--provider cpu" in str(refused.value)
    assert text not in providers.described


@pytest.mark.parametrize(
    ("content", "told"), [(b"\0num_of_threads\0", {"num_of_threads": "2"}), (b"", {})]
)
def test_threads_are_an_option_where_the_library_has_one(tmp_path, monkeypatch, content, told):
    (tmp_path / "lib.so").write_bytes(content + b"\0device_type\0")
    monkeypatch.setattr(Provider, "file", str(tmp_path / "lib.so"))
    seen = []

    def create(source, options, *, providers, enable_fallback):
        seen.append(providers[0])
        raise RuntimeError("stop here")

    monkeypatch.setattr(onnxruntime, "InferenceSession", create)
    options = {"provider": Provider("openvino"), "threads": 2}
    for given in ({}, {"device_type": "GPU"}):
        with pytest.raises(ProviderUnavailableError, match="stop here"):
            make_session(TEXT, **options, provider_options=given)
        assert seen.pop() == ("OpenVINOExecutionProvider", {**told, **given})
    with pytest.raises(InvalidArgumentError, match="'devicetype' is not read by .*lib.so"):
        make_session(TEXT, **options, provider_options={"devicetype": "GPU"})
    assert not seen


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of a plugin, installed in a folder of the path."""
    folder = tmp_path / "onnxruntime_ep_webgpu"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE.format(library=str(ENGINE)))
    metadata = tmp_path / "onnxruntime_ep_webgpu-9.9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: onnxruntime-ep-webgpu\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    providers._found.cache_clear()
    yield folder
    providers._found.cache_clear()


def test_a_package_runs_when_it_is_named_and_never_by_itself(package):
    """Its code runs in the child that tries it, and here once it works."""
    command = (
        "from ortmeter.runtime.providers import *; resolve_provider('auto'); probe_providers()"
    )
    assert run_python("-c", command, variables={"PYTHONPATH": ":".join(sys.path)}).returncode == 0
    probe_providers.__wrapped__()
    assert not (package / "imported").exists()
    with pytest.raises(ProviderUnavailableError, match="CreateEpFactories"):
        resolve_provider("webgpu")
    assert (package / "imported").exists()
    assert "onnxruntime_ep_webgpu" not in sys.modules


def test_nothing_of_plugins_is_imported_for_the_cpu():
    code = (
        "import sys; from ortmeter.runtime.providers import resolve_provider;"
        "resolve_provider('cpu'), resolve_provider('auto');"
        "sys.exit('onnxruntime' in sys.modules)"
    )
    assert run_python("-c", code).returncode == 0
