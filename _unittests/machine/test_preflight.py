"""Tests of ortmeter.machine.preflight: systems are folders of planted files."""

import json
import os
import sys
from types import SimpleNamespace

import pytest

from ortmeter.errors import OrtMeterError
from ortmeter.machine import preflight as module
from ortmeter.machine.gpu import used_memory
from ortmeter.machine.preflight import preflight, refuse_noisy
from ortmeter.runtime.providers import Provider

HERTZ = os.sysconf("SC_CLK_TCK")
CPU = "sys/devices/system/cpu"
CUDA = Provider("cuda", 1)


def stat(busy=0.0, stolen=0.0, cores=4):
    """Each core was busy, and its time stolen, for so many seconds."""
    ticks = f"{round(HERTZ * busy)} 0 0 1000 50 0 0 {round(HERTZ * stolen)} 0 0"
    return "\n".join(["cpu  9 9 9 9", *(f"cpu{i} {ticks}" for i in range(cores)), "intr 1 2", ""])


QUIET = {
    "proc/stat": stat(),
    "proc/uptime": "100.00 90.00\n",
    "proc/meminfo": "MemTotal: 1000000 kB\nSwapTotal: 500000 kB\nSwapFree: 500000 kB\n",
    "proc/vmstat": "nr_free_pages 3\npswpin 10\npswpout 20\n",
    "proc/self/cgroup": "0::/job\n",
    "sys/fs/cgroup/job/cpu.max": "max 100000\n",
    "sys/fs/cgroup/job/cpu.stat": "usage_usec 5\nnr_throttled 7\n",
    f"{CPU}/cpu0/cpufreq/scaling_governor": "performance\n",
    f"{CPU}/cpufreq/boost": "0\n",
    f"{CPU}/cpu0/thermal_throttle/core_throttle_count": "3\n",
    f"{CPU}/cpu1/thermal_throttle/core_throttle_count": "4\n",
}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(module, "core_numbers", lambda: range(4))
    monkeypatch.setattr(os, "times", lambda: (0.0,) * 5)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def plant(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        content = text if isinstance(text, bytes) else text.encode()
        (root / name).write_bytes(content)


def look(root, files=None, later=None, threads=1):
    """Check a quiet system with these files, of which some change 0.2 s later."""
    later = {"proc/uptime": "100.20 90.00\n", **(later or {})}
    plant(root, {**QUIET, **(files or {})})
    return preflight(threads, root=root, pause=lambda _: plant(root, later))


def test_a_quiet_machine_is_fit(tmp_path):
    found = look(tmp_path)
    assert (found.is_quiet, found.findings, found.unknown) == (True, (), ())
    assert str(found) == "no disturbance was seen"
    refuse_noisy(found)


@pytest.mark.parametrize(
    ("files", "later", "threads", "expected"),
    [
        # load: 4 cores busy for 0.1 of 0.2 s, then for less than what is allowed
        ({}, {"proc/stat": stat(0.1)}, 1, "other processes use 2.0 of the 4 cores"),
        ({}, {"proc/stat": stat(0.01)}, 1, ""),
        # cores that this process may not use do not matter
        (
            {"proc/stat": stat(cores=9)},
            {"proc/stat": stat(cores=4) + "cpu8 99 0 0 0 0 0 0 0"},
            1,
            "",
        ),
        # threads and quotas, of version 2 and 1, of a group above
        ({}, {}, 4, ""),
        ({}, {}, 5, "5 threads on 4 cores"),
        ({"sys/fs/cgroup/job/cpu.max": "50000 100000"}, {}, 1, "1 thread on 0.5 cores, the quota"),
        ({"sys/fs/cgroup/job/cpu.max": "200000 100000"}, {}, 0, "4 threads on 2 cores, the quota"),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/d\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            {},
            2,
            "2 threads on 1 core, the quota",
        ),
        ({}, {"sys/fs/cgroup/job/cpu.stat": "nr_throttled 9"}, 1, "stopped this container 2 times"),
        # frequency
        ({f"{CPU}/cpu1/cpufreq/scaling_governor": "powersave\n"}, {}, 1, "governor is powersave"),
        # heat, swap, the hypervisor
        ({}, {f"{CPU}/cpu1/thermal_throttle/core_throttle_count": "9\n"}, 1, "slowed cores down 5"),
        ({}, {"proc/vmstat": "pswpin 15\npswpout 20\n"}, 1, "5 pages are swapped"),
        (
            {"proc/meminfo": "MemTotal: 4000000\nSwapTotal: 2097152 kB\nSwapFree: 1048576 kB\n"},
            {},
            1,
            "1.0 GiB of memory are swapped out",
        ),
        ({}, {"proc/stat": stat(stolen=0.02)}, 1, "the hypervisor gave 10% of the time"),
        ({}, {"proc/stat": stat(stolen=0.001)}, 1, ""),
    ],
)
def test_each_trouble_is_found_with_its_evidence(tmp_path, files, later, threads, expected):
    found = look(tmp_path, files, later, threads)
    assert len(found.findings) == bool(expected)
    assert expected in str(found)


@pytest.mark.parametrize(
    ("file", "state", "expected"),
    [
        ("cpufreq/boost", "1", "write 0 into /sys/devices/system/cpu/cpufreq/boost"),
        ("intel_pstate/no_turbo", "0", "write 1 into /sys/devices/system/cpu/intel_pstate"),
        ("intel_pstate/no_turbo", "1", ""),
    ],
)
def test_a_boosted_frequency_is_a_note(tmp_path, file, state, expected):
    found = look(tmp_path, {f"{CPU}/{file}": f"{state}\n"})
    assert (found.is_quiet, len(found.notes)) == (True, bool(expected))
    assert expected in str(found)
    refuse_noisy(found)


def test_strict_refuses_and_tells_why(tmp_path):
    files = {f"{CPU}/cpufreq/boost": "1", f"{CPU}/cpu1/cpufreq/scaling_governor": "powersave"}
    found = look(tmp_path, files, threads=5)
    with pytest.raises(OrtMeterError, match="not fit to measure: 5 threads .*; the frequency gov"):
        refuse_noisy(found)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["findings"] == list(found.findings)
    assert told["notes"] == list(found.notes) != []
    assert (told["is_quiet"], told["unknown"]) == (False, [])


def test_what_happened_since_an_earlier_check_is_told(tmp_path):
    before = look(tmp_path)
    later = {"proc/uptime": "110.20 9", "proc/vmstat": "pswpin 40\npswpout 20\n"}
    plant(tmp_path, {**later, "proc/stat": stat(5.0)})
    found = preflight(
        since=before, root=tmp_path, pause=lambda _: pytest.fail("nothing to wait for")
    )
    assert found.findings == (
        "other processes use 2.0 of the 4 cores of this process: stop them, or wait",
        "30 pages are swapped meanwhile: free memory",
    )


def test_one_core_is_told_in_the_singular(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "core_numbers", lambda: range(1))
    found = look(tmp_path, later={"proc/stat": stat(0.18)}, threads=2)
    assert [text.partition(":")[0] for text in found.findings] == [
        "other processes use 90% of the one core of this process",
        "2 threads on 1 core",
    ]
    assert found.is_shared


def test_the_time_of_this_process_is_not_that_of_others(tmp_path, monkeypatch):
    spent = iter([(0.0, 0.0, 0.0, 0.0, 0.0), (0.1, 0.1, 0.1, 0.1, 0.0)])
    monkeypatch.setattr(os, "times", lambda: next(spent))
    assert look(tmp_path, later={"proc/stat": stat(0.1)}).is_quiet


def test_a_system_that_tells_nothing_is_not_accused(tmp_path):
    found = preflight(root=tmp_path, pause=lambda _: None)
    hidden = ("load", "frequency", "thermal throttling", "stolen time", "swap")
    assert (found.is_quiet, found.unknown) == (True, hidden)
    told = f"no disturbance was seen (not reported by this system: {', '.join(hidden)})"
    assert str(found) == told


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe" * 50,
        "²³ ² ² ² ² ² ² ² ²\n".encode(),
        b"9" * 5000,
        b"-1 nan\n",
        b"cpu0 1 2\ncpu 1\ncpu" + b"9" * 5000 + b" 1 2 3 4 5 6 7 8\ncpu1 a b c d e f g h\n",
        b"0:::/\n0::/../..\n:::\n" + b"x" * 1000,
        b"\x1b[31m<script>$(reboot)\n",
    ],
)
def test_garbage_is_not_obeyed(tmp_path, content):
    plant(tmp_path, dict.fromkeys(QUIET, content))
    found = preflight(2, root=tmp_path, pause=lambda _: None)
    assert str(found).isprintable()
    assert not set("<$") & set(str(found))
    assert len(str(found)) < 500


class NvmlError(Exception):
    pass


def fake_nvml(**answers):
    """A driver: answers by name of function, refused when they are errors, missing otherwise."""

    def function(answer):
        def ask(*_):
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask

    plain = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetHandleByIndex": "gpu",
        "nvmlDeviceGetIndex": 1,
    }
    functions = {name: function(answer) for name, answer in (plain | answers).items()}
    return SimpleNamespace(NVMLError=NvmlError, **functions)


BUSY = {
    "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1), SimpleNamespace(pid=2)],
    "nvmlDeviceGetGraphicsRunningProcesses": NvmlError("not supported"),
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
    "nvmlDeviceGetCurrentClocksEventReasons": 0x1 | 0x4 | 0x20,
}
IDLE = {
    "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=os.getpid())],
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0),
    "nvmlDeviceGetCurrentClocksEventReasons": 0x2,
}


def gpu(monkeypatch, tmp_path, nvml):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    plant(tmp_path, QUIET)
    return preflight(provider=CUDA, root=tmp_path, pause=lambda _: None)


def test_a_gpu_that_is_disturbed(monkeypatch, tmp_path):
    assert gpu(monkeypatch, tmp_path, fake_nvml(**BUSY)).findings == (
        "other processes (2) use GPU 1, which is 40% busy: nvidia-smi -i 1 lists them, stop them",
        "the clocks of GPU 1 are lowered (limit of power, heat): wait, cool it",
    )


@pytest.mark.parametrize(
    "nvml",
    [
        None,  # not installed
        fake_nvml(nvmlInit=NvmlError("no driver")),
        fake_nvml(nvmlDeviceGetHandleByIndex=NvmlError("no such device")),
    ],
)
def test_a_gpu_that_cannot_be_asked_is_not_accused(monkeypatch, tmp_path, nvml):
    found = gpu(monkeypatch, tmp_path, nvml)
    assert (found.is_quiet, "GPU" in found.unknown) == (True, True)


@pytest.mark.parametrize("answers", [IDLE, {}])
def test_a_gpu_that_is_quiet_or_says_nothing_is_not_accused(monkeypatch, tmp_path, answers):
    assert gpu(monkeypatch, tmp_path, fake_nvml(**answers)).is_quiet


def test_a_variable_chooses_the_gpu(monkeypatch, tmp_path):
    asked = []
    nvml = fake_nvml(**IDLE)
    nvml.nvmlDeviceGetHandleByIndex = asked.append
    nvml.nvmlDeviceGetHandleByUUID = asked.append
    for visible in ("3,2", "GPU-a,GPU-b", ""):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        gpu(monkeypatch, tmp_path, nvml)
    assert asked == [2, "GPU-b", 1]


def test_the_memory_in_use_is_told(monkeypatch):
    answer = SimpleNamespace(used=3 << 30)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlDeviceGetMemoryInfo=answer))
    assert used_memory(CUDA) == 3 * 1024
    monkeypatch.setitem(
        sys.modules, "pynvml", fake_nvml(nvmlDeviceGetMemoryInfo=NvmlError("not supported"))
    )
    assert used_memory(CUDA) is None


@pytest.mark.cuda
def test_a_real_gpu_answers():
    pytest.importorskip("pynvml")
    assert "GPU" not in preflight(provider=Provider("cuda")).unknown
