"""Time budgets of the pages, on reports as sphinx-gallery writes them."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from sphinx_gallery.gen_gallery import write_junit_xml

DOC = Path(__file__).resolve().parents[1] / "_doc"
sys.path.insert(0, str(DOC))

from _ext import budget  # noqa: E402


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Finish a build whose pages took some seconds; return what it warned of and what it noted."""
    monkeypatch.delenv("ORTMETER_FAST", raising=False)

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


@pytest.mark.parametrize(
    ("times", "messages"),
    [
        ({}, []),
        ({"performance/plot_a.py": 60.0}, []),
        (
            {"performance/plot_a.py": 61.26, "numerics/plot_b.py": 3.0},
            ["performance/plot_a.py took 61.3 s, the budget is 60 s"],
        ),
        # every section has the same
        ({"backend/plot_a.py": 59.9}, []),
        (
            {"backend/plot_a.py": 60.1},
            ["backend/plot_a.py took 60.1 s, the budget is 60 s"],
        ),
        # each of them is short enough, all of them are too long
        ({f"einsum/plot_{i}.py": 60.0 for i in range(8)}, []),
        (
            {f"einsum/plot_{i}.py": 60.0 for i in range(9)},
            ["all 9 pages took 540.0 s, the budget is 480 s"],
        ),
    ],
)
def test_what_takes_too_long_is_told_and_fails_nothing(build, times, messages):
    told = build(times)
    assert told.notes == messages
    assert told.warnings == []


SLOW = {"performance/plot_a.py": 100.0}


def test_fast_mode_and_builds_without_pages_have_no_budget(build, monkeypatch):
    assert build(SLOW, plot_gallery=False).notes == []
    assert build(SLOW, exception=RuntimeError()).notes == []
    monkeypatch.setenv("ORTMETER_FAST", "1")
    assert build(SLOW).notes == []
