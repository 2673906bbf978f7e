import ortmeter.runtime.cpu as module
from ortmeter.runtime.cpu import cache_bytes, cpu_flags


def test_cpu_flags_are_sorted():
    assert list(cpu_flags()) == sorted(cpu_flags())


def test_the_largest_cache_is_read(monkeypatch, tmp_path):
    for i, size in enumerate(["48K", "1024K", "32M"]):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(f"{size}\n")
    monkeypatch.setattr(module, "_CACHES", tmp_path)
    assert cache_bytes() == 32 * 2**20
    monkeypatch.setattr(module, "_CACHES", tmp_path / "none")
    assert cache_bytes() == 0
