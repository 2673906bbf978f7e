"""Time budgets of the pages, on reports as sphinx-gallery writes them."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from sphinx.errors import ConfigError
from sphinx_gallery.gen_gallery import write_junit_xml

DOC = Path(__file__).resolve().parents[1] / "_doc"
sys.path.insert(0, str(DOC))

from _ext import budget  # noqa: E402


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Finish a build whose pages took some seconds; return what it warned of and what it noted."""
    for name in ("ORTMETER_FAST", "ORTMETER_BUDGET"):
        monkeypatch.delenv(name, raising=False)

    def finish(times, exception=None, plot_gallery=True):
        report, told = tmp_path / "report.xml", SimpleNamespace(warnings=[], notes=[])
        write_report(report, tmp_path, times)
        for level, kept in (("warning", told.warnings), ("info", told.notes)):
            keep = lambda _, text, kept=kept, **options: kept.append(text)  # noqa: E731
            monkeypatch.setattr(budget.logger, level, keep)
        conf = {"junit": str(report), "plot_gallery": plot_gallery}
        app = SimpleNamespace(config=SimpleNamespace(sphinx_gallery_conf=conf))
        budget.check_budgets(app, exception)
        return told

    return finish


def write_report(file, source, times):
    """Let sphinx-gallery write the report of pages that ran, and of one that did not."""
    costs = [
        SimpleNamespace(src_file=str(source / "examples" / page), execution_time=seconds)
        for page, seconds in {**times, "performance/plot_kept.py": 1000}.items()
    ]
    names = [cost.src_file for cost in costs]
    conf = {
        "junit": str(file),
        "plot_gallery": True,
        "src_dir": str(source),
        "passing_examples": names[:-1],
        "failing_examples": {},
        "expected_failing_examples": [],
        "titles": dict.fromkeys(names, "A title?"),
    }
    write_junit_xml(conf, source, costs)


HINT = "make it smaller, or set ORTMETER_BUDGET=off on a slow machine"


@pytest.mark.parametrize(
    ("times", "messages"),
    [
        ({}, []),
        ({"performance/plot_a.py": 60.0}, []),
        (
            {"performance/plot_a.py": 61.26, "numerics/plot_b.py": 3.0},
            [f"performance/plot_a.py took 61.3 s, the budget is 60 s: {HINT}"],
        ),
        # the backend has another one
        ({"backend/plot_a.py": 89.9}, []),
        (
            {"backend/plot_a.py": 90.1},
            [f"backend/plot_a.py took 90.1 s, the budget is 90 s: {HINT}"],
        ),
        # each of them is short enough, all of them are too long
        ({f"einsum/plot_{i}.py": 60.0 for i in range(8)}, []),
        (
            {f"einsum/plot_{i}.py": 60.0 for i in range(9)},
            [f"all 9 pages took 540.0 s, the budget is 480 s: {HINT}"],
        ),
    ],
)
def test_what_takes_too_long_is_a_warning(build, times, messages):
    told = build(times)
    assert told.warnings == messages
    assert told.notes == []


SLOW = {"performance/plot_a.py": 100.0}


def test_a_slow_machine_has_a_note(build, monkeypatch):
    monkeypatch.setenv("ORTMETER_BUDGET", "off")
    told = build(SLOW)
    assert told.warnings == []
    assert len(told.notes) == 1
    assert "plot_a.py took 100.0 s" in told.notes[0]


def test_fast_mode_and_builds_without_pages_have_no_budget(build, monkeypatch):
    assert build(SLOW, plot_gallery=False).warnings == []
    assert build(SLOW, exception=RuntimeError()).warnings == []
    monkeypatch.setenv("ORTMETER_FAST", "1")
    assert build(SLOW).warnings == []


def test_a_setting_that_is_not_known_is_refused_before_the_pages_run(monkeypatch):
    monkeypatch.setenv("ORTMETER_BUDGET", "none")
    with pytest.raises(ConfigError, match="ORTMETER_BUDGET='none' is not known. Accepted: on, off"):
        budget.check_setting(None, None)
