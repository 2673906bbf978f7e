"""Check a machine with a GPU against what is expected of it, then record the pages there.

python _benchmarks/gpu_check.py [--out build/gpu-check] [--seconds 480] [--quick]

Each step runs in a process of its own, with a limit of time: what crashes or hangs loses nothing
else. What it finds is in the folder at once. Called again, the script goes on with the steps that
are missing; ``--seconds 0`` only writes the report again. No network is used.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import command

ROOT = Path(__file__).resolve().parent.parent
LOG_BYTES = 200_000
_SLOWER = 4  # a CPU that several tests share


class Step(NamedTuple):
    """Something to run, and the seconds after which it is stopped."""

    name: str
    limit_s: float
    expected: str
    command: tuple[str, ...] = ()

    def arguments(self, out: Path, *, quick: bool) -> list[str]:
        """Write the command of the child; by default a function of gpu_steps."""
        own = ["_benchmarks/gpu_steps.py", self.name, str(_rows(out, self.name))]
        return [sys.executable, *(self.command or [*own, *(["--quick"] if quick else [])])]


#: By value: what does not fit in the time left is listed at the end.
CHECKS = (
    Step("probe", 60, "CUDA works"),
    Step("cached_attention", 60, "GroupQueryAttention with a cache is right in each kernel"),
    Step("tests", 240, "every test marked cuda passes"),
    Step("kernels", 60, "nodes run where the table of CUDA kernels says"),
    Step("attention", 150, "the kernel that runs, and its time beside torch's"),
    Step("masks", 30, "rows masked by the lowest number of the type give no NaN"),
    Step("host_time", 60, "a call with hundreds of weights costs the host less than eager"),
    Step("decoding", 90, "a token with a cache has the same logits in each way, and what it costs"),
    Step("peaks", 60, "products and copies reach 0.8 of what torch reaches"),
)
#: The pages that answer an original first, then the others, the shortest first; not those that
#: need a network.
NAMES = """op_gemm2_cuda profiling kmeans_profiling layer_norm_discrepancies einsum_decomposition
custom_backend_llama_102 parallelized_reduction threads first_result memory python_cost load
providers sweep custom_backend_101 torch_or_onnxruntime operators_torch"""
PAGES = tuple(f"plot_{name}" for name in NAMES.split())


def all_steps(*, quick: bool) -> list[Step]:
    """List the checks, then the pages; a quick run has few tests, and a page without a record."""
    files = ["_unittests/runtime/test_providers.py"] if quick else tests_on_cuda()
    tests = ("-m", "pytest", "-q", "-m", "cuda", "--maxfail=50", *files)
    checks = [step._replace(command=tests) if step.name == "tests" else step for step in CHECKS]
    kept = ["--provider", "cuda", *([] if quick else ["--record"])]
    for page in PAGES[:1] if quick else PAGES:
        (file,) = (ROOT / "_doc" / "examples").rglob(f"{page}.py")
        command_line = (str(file.relative_to(ROOT)), *kept)
        checks.append(Step(page, 200, "it runs on CUDA", command_line))
    return checks


def tests_on_cuda() -> list[str]:
    """List the files with tests marked cuda: others may need what is not installed."""
    files = sorted((ROOT / "_unittests").rglob("test_*.py"))
    marked = [file for file in files if "@pytest.mark.cuda" in file.read_text(encoding="utf-8")]
    # The pages are steps.
    return [str(file.relative_to(ROOT)) for file in marked if file.name != "test_pages.py"]


def main() -> None:
    """Run the steps that are missing, then write the report."""
    build = ROOT / "build" / "gpu-check"
    given = command.options(__doc__, out=build, seconds=1080.0, quick=False)
    out, steps = given.out.resolve(), all_steps(quick=given.quick)
    run_steps(steps, out, seconds=given.seconds, quick=given.quick)
    (out / "report.md").write_text(report(steps, out), encoding="utf-8")
    missing = ", ".join(step.name for step in steps if read(out, step.name) is None) or "nothing"
    print(f"report: {out / 'report.md'}")
    print(f"to commit: cp -r {out / 'results'}/. _doc/results/")
    print(f"not run yet: {missing}")


def run_steps(steps: list[Step], out: Path, *, seconds: float, quick: bool = False) -> None:
    """Run what has no result, within *seconds*."""
    for folder in ("steps", "logs", "results"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    for step in steps:
        if read(out, step.name) is not None:
            continue
        probe = read(out, "probe")
        if probe is not None and not agrees(probe):
            print("the probe failed, see the report: nothing else is run")
            return
        limit = step.limit_s * (_SLOWER if quick else 1)
        if limit > end - time.monotonic():
            continue  # another slice has the time
        print(f"{step.name}: at most {limit:.0f} s", flush=True)
        result = run_step(step, out, limit, quick=quick)
        print(f"    {result['status']}, {result['seconds']:.0f} s", flush=True)


def run_step(step: Step, out: Path, limit: float, *, quick: bool) -> dict[str, Any]:
    """Run a step in a process of its own and write what it found."""
    log = out / "logs" / f"{step.name}.log"
    _rows(out, step.name).unlink(missing_ok=True)  # of a step that was interrupted
    begun = time.monotonic()
    called = step.arguments(out, quick=quick)
    environment = {**os.environ, "MPLBACKEND": "agg", "ORTMETER_RESULTS": str(out / "results")}
    environment |= {"ORTMETER_FAST": "1"} if quick else {}
    with log.open("wb") as stream:
        writes = {"stdout": stream, "stderr": subprocess.STDOUT, "start_new_session": True}
        child = subprocess.Popen(called, cwd=ROOT, env=environment, **writes)
        try:
            code = child.wait(limit)
            status = "done" if code == 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            status = f"stopped after {limit:.0f} s"
        finally:  # with the processes that it started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    text = log.read_bytes()[-LOG_BYTES:].decode(errors="replace")
    log.write_text(text, encoding="utf-8")
    result = {
        "step": step.name,
        "status": status,
        "seconds": time.monotonic() - begun,
        "last_lines": text.rstrip().splitlines()[-3:],
        "rows": list(read_rows(_rows(out, step.name))),
    }
    temporary = out / "steps" / f"{step.name}.tmp"
    temporary.write_text(json.dumps(result, indent=1), encoding="utf-8")
    temporary.replace(temporary.with_suffix(".json"))
    _rows(out, step.name).unlink(missing_ok=True)
    return result


def agrees(result: dict[str, Any]) -> bool:
    """Whether a step ended and found what was expected."""
    return result["status"] == "done" and all(row["agrees"] is not False for row in result["rows"])


def read(out: Path, name: str) -> dict[str, Any] | None:
    """Read what a step found, None when it was not run."""
    file = out / "steps" / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Read the rows that a step wrote; the last one may be cut."""
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def _rows(out: Path, name: str) -> Path:
    return out / "steps" / f"{name}.rows"


def report(steps: list[Step], out: Path) -> str:
    """Write what was expected and what was found, disagreements first in the summary."""
    summary = ["# What was expected of this GPU, and what was found", ""]
    summary += ["| step | expected | found | seconds |", "|---|---|---|---|"]
    details: list[str] = []
    for step in steps:
        result = read(out, step.name)
        if result is None:
            summary.append(f"| {step.name} | {step.expected} | **not run** | |")
            continue
        rows = result["rows"]
        wrong = sum(row["agrees"] is False for row in rows)
        verdict = f"**{wrong} of {len(rows)} differ**" if wrong else result["status"]
        if result["status"] != "done":
            verdict = f"**{result['status']}**"
        summary.append(f"| {step.name} | {step.expected} | {verdict} | {result['seconds']:.0f} |")
        details += ["", f"## {step.name}", ""]
        if rows:
            details += ["| case | expected | found | |", "|---|---|---|---|"]
            details += [_line(row) for row in rows]
        if not rows or result["status"] != "done":
            details += ["```", *result["last_lines"], "```"]
    return "\n".join([*summary, *details, ""])


def _line(row: dict[str, Any]) -> str:
    verdict = {True: "as expected", False: "**differs**", None: ""}[row["agrees"]]
    cells = (str(row[key]).replace("|", "/") for key in ("case", "expected", "found"))
    return f"| {' | '.join(cells)} | {verdict} |".replace("\n", " ")


if __name__ == "__main__":
    main()
