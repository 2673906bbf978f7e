import dataclasses
import json
import os
import platform
import subprocess
import sys

import pytest

from ortmeter.machine import environment as module
from ortmeter.machine.environment import Gpu, environment


def test_the_machine_is_described():
    got = environment()
    assert got.python == platform.python_version()
    assert 1 <= got.cores <= os.cpu_count()
    assert got.cpu
    assert {"onnx", "numpy"} <= got.packages.keys()
    assert got.packages.keys() & {"onnxruntime", "onnxruntime-gpu"}
    assert got.providers["cpu"] == "usable"


def test_it_is_one_line_a_table_and_json(monkeypatch):
    monkeypatch.setattr(module, "_cpu_model", lambda: "<b>CPU</b>")
    got = environment()
    assert "<b>" not in got._repr_html_()
    assert "\n" not in str(got)
    assert got.cpu in str(got)
    assert json.loads(json.dumps(got.to_dict()))["cpu"] == got.cpu
    rows = got.to_rows()
    assert got._repr_html_().count("<tr>") == len(rows)


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        (None, ()),
        ("", ()),
        ("NVIDIA H200, 143771, 580.1\n", (Gpu("NVIDIA H200", 143771, "580.1"),)),
        ("GB10, [N/A], 580\nA, 1024, 1\n", (Gpu("GB10", None, "580"), Gpu("A", 1024, "1"))),
    ],
)
def test_the_list_of_gpus_is_read(monkeypatch, listing, expected):
    monkeypatch.setattr(module, "output_of", lambda *command: listing)
    assert module._gpus() == expected
    assert all("driver" in str(gpu) for gpu in expected)


def test_variables_that_choose_kernels_are_kept_and_no_others(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("ORT_", "CUDA_", "NVIDIA_"))]:
        monkeypatch.delenv(name)
    assert dict(environment().to_rows())["Variables"] == "none"
    kept = ["NVIDIA_TF32_OVERRIDE", "ORT_DISABLE_FLASH_ATTENTION", "ORT_INTRA_OP_NUM_THREADS"]
    for name in kept:
        monkeypatch.setenv(name, "1")
    for name in ("ORT_API_KEY", "NVIDIA_API_KEY", "ORT_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "s3cr3t")
    assert environment().variables == dict.fromkeys(kept, "1")


def test_torch_is_described_when_loaded_and_never_imported():
    code = (
        "import sys; from ortmeter.machine.environment import environment; "
        "assert 'torch' not in environment().precision; assert 'torch' not in sys.modules; "
        "import torch; assert 'highest' in environment().precision['torch']; "
        "assert \"convolutions on CUDA in 'tf32'\" in environment().precision['torch']; "
        "torch.backends.cudnn.allow_tf32 = False; "
        "assert 'tf32' not in environment().precision['torch']; "
        "assert environment().threads['torch'] == torch.get_num_threads()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_commit_is_the_one_of_our_checkout_only(monkeypatch, tmp_path):
    package = tmp_path / "site-packages" / "ortmeter"
    package.mkdir(parents=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-qm", "theirs", "--allow-empty"], check=True)
    monkeypatch.setattr(module, "__file__", str(package / "runtime" / "environment.py"))
    assert module._git_commit() is None
    ours = tmp_path / "src" / "ortmeter"
    ours.mkdir(parents=True)
    monkeypatch.setattr(module, "__file__", str(ours / "runtime" / "environment.py"))
    assert len(module._git_commit()) == 12


def test_a_program_that_fails_gives_nothing():
    assert module.output_of(sys.executable, "-c", "raise SystemExit(3)") is None
    assert module.output_of("not-a-program-of-this-machine") is None


@pytest.mark.parametrize(
    ("cpu", "processor", "expected"),
    [
        ("AMD EPYC", ("26", "2", "AVX2, AVX-512, VNNI, AVX-VNNI, BF16"), "AMD EPYC (Turin)"),
        ("AMD EPYC", ("25", "17", "AVX2"), "AMD EPYC (Genoa, AVX-512 and VNNI and BF16 disabled)"),
        (
            "Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz",
            ("6", "143", "AVX2, AVX-512, VNNI, AVX-VNNI, BF16, AMX"),
            "Intel Xeon Platinum 8488C (Sapphire Rapids)",
        ),
        ("Some CPU", ("6", "999", "AVX2"), "Some (family 6, model 999, stepping 1)"),
    ],
)
def test_a_machine_has_the_name_of_its_generation(cpu, processor, expected):
    """What a virtual machine hides of it is said; a generation that is not listed has numbers."""
    family, model, instructions = processor
    told = {"family": family, "model": model, "stepping": "1", "instructions": instructions}
    machine = dataclasses.replace(environment(), cpu=cpu, cores=2, gpus=(), processor=told)
    assert machine.hardware == f"{expected}, 2 cores"
    assert dataclasses.replace(machine, cores=1).hardware == f"{expected}, 1 core"


def test_a_generation_has_one_name():
    known = [(fact.family, model) for fact in module._generations() for model in fact.models]
    assert len(known) == len(set(known)) > 20
