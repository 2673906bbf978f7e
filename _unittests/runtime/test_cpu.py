import ortmeter.runtime.cpu as module
from ortmeter.runtime.cpu import cpu_flags, processor

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
flags\t\t: fpu avx2 avx512f avx512_vnni hypervisor

processor\t: 1
"""


def test_cpu_flags_are_sorted():
    assert list(cpu_flags()) == sorted(cpu_flags())


def test_a_processor_is_what_chooses_kernels_and_times(monkeypatch, tmp_path):
    for i, (level, kind, size) in enumerate([(1, "Data", "48K"), (3, "Unified", "32768K")]):
        (tmp_path / f"index{i}").mkdir()
        for name, text in {"level": level, "type": kind, "size": size}.items():
            (tmp_path / f"index{i}" / name).write_text(f"{text}\n")
    (tmp_path / "index4").mkdir()
    (tmp_path / "index4" / "level").write_text("4\n")  # of a size that is not told
    pairs = (line.partition(":") for line in CPUINFO.partition("\n\n")[0].splitlines())
    told = {name.strip(): text.strip() for name, _, text in pairs}
    monkeypatch.setattr(module, "_CACHES", tmp_path)
    monkeypatch.setattr(module, "cpu_info", lambda: told)
    monkeypatch.setattr(module, "cpu_flags", lambda: tuple(told["flags"].split()))
    assert processor.__wrapped__() == {
        "family": "25",
        "model": "17",
        "stepping": "1",
        "instructions": "AVX2, AVX-512, VNNI",
        "caches": "L1d 48K, L3 32768K",
        "hypervisor": "yes",
    }
    monkeypatch.setattr(module, "cpu_info", dict)
    assert processor.__wrapped__() == {}
