"""What ``operators --fusions`` says: the optimizers that change what a model answers."""

from collections.abc import Sequence

import onnx.printer
import onnxruntime

from ortmeter.cli import bisect
from ortmeter.cli.report import Report
from ortmeter.errors import OrtMeterError
from ortmeter.evidence import plural
from ortmeter.files import cache_folder
from ortmeter.observatory.fusions.judging import (
    FusionJudge,
    known_optimizers,
    measure_coverage,
)
from ortmeter.observatory.fusions.variations import FusionCase
from ortmeter.observatory.issue import run_script, write_wrong_fusion
from ortmeter.observatory.matrix import RuntimeCandidate
from ortmeter.observatory.repro import head_of_script
from ortmeter.releases.environments import Release

_TOLD = 5  # findings in the conclusion
_SCRIPT = """\
none, every = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL
for label, level, disabled in (
    ("not optimized", none, []),
    ("optimized", every, []),
    ("optimized without {optimizer}", every, ["{optimizer}"]),
):
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    try:
        session = ort.InferenceSession(bytes(model), options, disabled_optimizers=disabled)
        got = session.run(None, feeds)
    except Exception as error:
        got = str(error)
    print(f"onnxruntime {{ort.__version__}}, {{label}}:\\n{{got}}")
"""


def fill(
    report: Report,
    cases: Sequence[FusionCase],
    candidates: Sequence[RuntimeCandidate],
    span: Sequence[Release],
) -> int | None:
    """Fill the report with wrong results, and with the optimizers that fired."""
    last = candidates[-1].name
    with FusionJudge(candidates, cache_folder("fusions")) as judge:
        found = judge.survey(cases)
    now = found[found["candidates"].str.split(", ").map(lambda names: last in names).astype(bool)]
    report.conclude(
        f"{plural(len(found), 'wrong result')} in {plural(len(cases), 'model')}, "
        f"{len(now)} of them with {last}: optimized sessions compared with unoptimized ones."
    )
    for row in now.head(_TOLD).to_dict("records"):
        without = f"right without {row['disable']}" if row["disable"] else "no single optimizer"
        report.conclude(f"{row['case']}: {row['what']}, {row['told']} ({without}).")
    if len(found):
        report.add("Wrong results", found.set_index("case"))
    coverage = measure_coverage(cases)
    fired = coverage[coverage["fires"] != ""]
    report.conclude(
        f"{fired['optimizer'].nunique()} of the {len(known_optimizers())} optimizers and rules of "
        f"the installed onnxruntime fired on {len(fired)} of {len(coverage)} patterns."
    )
    report.add("Optimizers of the installed onnxruntime", coverage)
    if not span:
        return None
    began = now[now["since"] == last]["case"]
    return bisect.fill("ortmeter operators", report, span, map(_question, began))


def _question(case: str) -> bisect.Onset:
    def change(release: Release) -> str:
        with FusionJudge([RuntimeCandidate(release.name, release)]) as judge:
            found = judge.wrong(FusionCase.parse(case), release.name)
        return f"{found.what}, {found.told}" if found else ""

    return bisect.ask_outputs(f"{case} is wrong", change)


def write(
    report: Report, case: FusionCase, candidates: Sequence[RuntimeCandidate], as_issue: bool
) -> str:
    """Write a script that shows a case with each level, or the issue that has it."""
    last = candidates[-1]
    with FusionJudge([last]) as judge:
        wrong = judge.wrong(case, last.name)
        optimizer = (wrong and judge.responsible(wrong, last.name)) or case.op
    needed = last.release.requirements[:1] or [f"onnxruntime=={onnxruntime.__version__}"]
    head = head_of_script(case, needed, onnx.printer.to_text(case.model()))
    script = head + _SCRIPT.format(optimizer=optimizer)
    if not as_issue:
        return script
    if wrong is None:
        raise OrtMeterError(f"{case.name} is right with {last.name}: there is nothing to report")
    printed = {one.name: run_script(script, one.release) for one in candidates}
    return write_wrong_fusion(wrong, optimizer, script, printed, report.machine)
