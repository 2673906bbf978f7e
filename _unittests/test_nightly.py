"""What `make nightly` finds, on planted reports of pytest and of ``ortmeter operators``."""

import json

import nightly
import pytest

PASSES = '<testcase classname="a.b" name="test_x"/>'
FAILS = '<testcase classname="a.b" name="test_x[1]"><failure message="no"/></testcase>'
BREAKS = '<testcase classname="" name="a.c"><error message="collection failure"/></testcase>'


def section(title, *rows):
    return {"title": title, "tables": [list(rows)]}


def verdict(case, word):
    return section("installed beside 1.31.1", {"case": case, "speedup": 1.0, "verdict": word})


def errors(**found):
    """Errors of Exp, by candidate."""
    same = {"case": "Exp", "unit": "ulp", "bits": "ab"}
    rows = [{**same, "candidate": name, "error": value} for name, value in found.items()]
    return section("Errors against float64", *rows)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the script on planted reports; return the text of the issue, or None."""
    monkeypatch.setattr(nightly, "REPORTS", tmp_path / "reports")

    def run(tests, *sections):
        text = f"<testsuites><testsuite>{tests}</testsuite></testsuites>"
        (tmp_path / "tests.xml").write_text(text, encoding="utf-8")
        packages = {"packages": {"onnxruntime": "1.33.0.dev1"}}
        report = {"environment": packages, "conclusion": ["2 cases."], "sections": sections}
        (tmp_path / "operators.json").write_text(json.dumps(report), encoding="utf-8")
        nightly.main(tmp_path)
        issue = tmp_path / "changes.md"
        return issue.read_text(encoding="utf-8") if issue.exists() else None

    return run


@pytest.mark.parametrize(
    ("tests", "sections", "finding"),
    [
        (FAILS, (), "test a.b.test_x[1] fails"),
        (BREAKS, (), "test .a.c fails"),
        (PASSES, (verdict("Gemm-f32", "slower"),), "Gemm-f32 is slower"),
        (PASSES, (verdict("Gemm-f32", "faster"),), "Gemm-f32 is faster"),
        (
            PASSES,
            (section("Absent", {"case": "Tan", "candidate": "installed", "reason": "no kernel"}),),
            "Tan is absent from installed: no kernel",
        ),
        (
            PASSES,
            (errors(latest=0.5, installed=3.25),),
            "Exp has another error: 0.5 ulp with latest, 3.25 ulp with installed",
        ),
    ],
)
def test_a_change_is_told_once_and_again_when_it_is_over(run, tests, sections, finding):
    told = run(tests, *sections)
    assert f"## New\n\n- {finding}\n" in told
    assert "ONNX Runtime 1.33.0.dev1, beside the latest release.\n\n- 2 cases." in told
    assert run(tests, *sections) is None
    told = run(PASSES)
    assert f"## Over\n\n- {finding}\n" in told
    assert "## New" not in told


@pytest.mark.parametrize(
    "sections",
    [
        (),
        (verdict("Gemm", "undecided"), verdict("Exp", "negligible")),
        (errors(all=3.0),),
        (errors(latest=0.5, installed=0.5),),
    ],
)
def test_what_is_no_claim_opens_no_issue(run, sections):
    assert run(PASSES, *sections) is None


@pytest.mark.parametrize(
    ("printed", "is_fixed"),
    [
        (("[1]", "[2]", "[1]"), False),
        (("[1]", "[1]", "[1]"), True),
        (("10 us", "31.5 us", "12 us"), False),
        (("10 us", "9.5 us", "12 us"), True),
    ],
)
def test_a_report_that_is_fixed_is_told(printed, is_fixed, run, tmp_path):
    lines = "\n".join(f"print('onnxruntime 1.33.0, a:\\n{one}')" for one in printed)
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "a.md").write_text(
        f"# Title\n\n```python\n{lines}\n```\n", encoding="utf-8"
    )
    assert ("- report a.md is fixed\n" in (run(PASSES) or "")) is is_fixed


def test_an_issue_stays_readable():
    told = nightly.changes(set(), {f"case {i:03} is slower" for i in range(250)})
    assert len(told.splitlines()) == nightly.LIMIT + 3
    assert told.endswith("- and 150 more")
