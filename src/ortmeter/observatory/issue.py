"""The report of a finding, in the form of the template of ONNX Runtime for issues."""

import math
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote_plus

import pandas as pd

from ortmeter.child import killed_by, output_of
from ortmeter.errors import OrtMeterError
from ortmeter.evidence import Estimate, plural
from ortmeter.machine.environment import Environment
from ortmeter.observatory.case import in_words
from ortmeter.observatory.fusions.judging import QUANTIZED, WrongFusion
from ortmeter.observatory.judge import Judge, worst_place
from ortmeter.observatory.matrix import Matrix
from ortmeter.observatory.repro import DRAWN
from ortmeter.observatory.verdicts import claimed, compare_cells, estimates
from ortmeter.releases.environments import Release
from ortmeter.releases.process import run_once
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.providers import Provider
from ortmeter.study.rendering import digits
from ortmeter.study.writer import enumerate_items
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.measurement import format_seconds

_TRACKER = "https://github.com/microsoft/onnxruntime/issues"
_PATIENCE_S = 120
_VERSION = "import onnxruntime; print(onnxruntime.__version__)"
_LINES = 5  # of the errors of a script
_ARCHITECTURES = {"x86_64": "X64", "AMD64": "X64", "arm64": "ARM64", "aarch64": "ARM64"}


def run_script(script: str, release: Release) -> str:
    """Run a script in the environment of a release, by its standard input.

    Parameters
    ----------
    script : str
        Source that needs NumPy and ONNX Runtime only.
    release : Release
        Its environment exists.

    Returns
    -------
    str
        What it printed.

    Raises
    ------
    OrtMeterError
        It failed, or took more than 120 s.

    Examples
    --------
    >>> run_script("print(1 + 1)", Release("installed"))
    '2'
    """
    done = _ran(script, release)
    if done.returncode:
        told = " ".join(done.stderr.strip().splitlines()[-_LINES:])
        raise OrtMeterError(f"{release.name}: the script fails: {told}")
    return done.stdout.strip()


def _ran(script: str, release: Release) -> subprocess.CompletedProcess[str]:
    command = [str(release.python), "-I", "-"]
    try:
        return subprocess.run(  # noqa: S603 - our own script, no shell
            command, input=script, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise OrtMeterError(f"{release.name}: the script cannot run: {cause}") from cause


def show_wrong(script: str, variant: SessionSpec, release: Release) -> str:
    """Add the lines that print the element of the first output that is the most wrong.

    Parameters
    ----------
    script : str
        See :func:`~ortmeter.observatory.repro.repro_script`.
    variant : SessionSpec
        What it runs.
    release : Release
        The one whose result is wrong.

    Returns
    -------
    str
        The script; it is the same where nothing else computes the output, and where it draws
        arrays that are not those of the variant.
    """
    name = load_model(variant.model).graph.output[0].name
    expected, got = (
        found.get(name) for found in (Judge(variant).reference.outputs, run_once(release, variant))
    )
    if DRAWN in script or expected is None or got is None or expected.shape != got.shape:
        return script
    (place,) = worst_place(expected.ravel(), got.ravel())
    return (
        f"{script}got = binding.get_outputs()[0].numpy().ravel()[{place}]\n"
        f'print(f"element {place}: {{got}}, expected {expected.ravel()[place]}")\n'
    )


def write_issue(
    case: str,
    matrix: Matrix,
    inputs: Mapping[str, str],
    script: str,
    printed: Mapping[str, str],
    *,
    machine: Environment,
    provider: Provider,
    wrong: str = "",
    remarks: Sequence[str] = (),
) -> str:
    """Write an issue for ONNX Runtime: a performance issue, or a wrong result.

    Parameters
    ----------
    case : str
        What is slower or wrong: a case of the matrix.
    matrix : Matrix
        Times of the case, of others like it, and of the whole model.
    inputs : mapping of str to str
        Types and shapes of what the cases take; the whole model is not there.
    script : str
        What measures the case.
    printed : mapping of str to str
        For each release, the oldest first, what the script printed there.
    machine : Environment
        Where it was measured.
    provider : Provider
        What ran it.
    wrong : str
        How the result of the last release is wrong, a sentence.
    remarks : sequence of str
        Paragraphs for the end of the description.

    Returns
    -------
    str
        Markdown: the title, the fields of the template, then what the reader does before sending.

    Raises
    ------
    InvalidArgumentError
        There are less than two releases.
    OrtMeterError
        The result is right, and the last release is not shown to be slower.
    """
    releases = list(printed)
    cells = compare_cells(matrix.times, releases)
    slower = _slower(cells, case, releases)
    if not slower and not wrong:
        own = cells.loc[cells.index.get_level_values("case") == case]
        told = ", ".join(map(str, estimates(own))) or "unknown"
        raise OrtMeterError(
            f"{in_words(case)}: nothing to report. {releases[-1]} is not shown to be slower than "
            f"those before, nor its result to be wrong (speedup {told})"
        )
    title, *sentences = slower or [""]
    if wrong:
        title = f"{in_words(case)}: wrong result with onnxruntime {releases[-1]}"
    rows = list(_issue_rows(cells, matrix.times[releases], inputs))
    described = [wrong, *sentences, _markdown([row for row in rows if row[0] in inputs], releases)]
    if models := [row for row in rows if row[0] not in inputs]:
        described.append(f"In a whole model:\n\n{_markdown(models, releases)}")
    passes, processes = (len(matrix.times.index.unique(name)) for name in ("pass", "process"))
    described.append(
        f"Median times of `Run` with bound inputs and outputs, in {passes} times {processes} fresh "
        f"processes, releases interleaved; intervals at 99%. {machine.cpu}, {machine.cores} cores "
        f"({dict(machine.to_rows())['Processor']}), {machine.system}, Python {machine.python}."
    )
    versions = [
        " with ".join(f"{name} {version}" for name, version in matrix.versions[release].items())
        for release in releases
    ]
    is_quantized = "Yes" if QUANTIZED.search(case) else "No"
    more = {"Model File": "It is in the script.", "Is this a quantized model?": is_quantized}
    return _issue(
        title,
        "\n\n".join(filter(None, [*described, *remarks])),
        _shown(script, printed.values(), f", in environments of {enumerate_items(versions)}"),
        _system(machine, provider, matrix.versions[releases[-1]]["onnxruntime"]),
        case.partition("-")[0],
        more={} if wrong else more,
    )


def write_failure(
    name: str,
    release: Release,
    told: str,
    script: str,
    printed: Mapping[str, str],
    *,
    inputs: str,
    machine: Environment,
    provider: Provider,
) -> str:
    """Write an issue for ONNX Runtime: a valid model that fails, where something else runs it.

    Parameters
    ----------
    name : str
        Operators of the model.
    release : Release
        The one that fails.
    told : str
        How it fails, and what runs it.
    script : str
        What fails, see :func:`~ortmeter.observatory.repro.repro_script`.
    printed : mapping of str to str
        What the script printed with other releases.
    inputs : str
        Types and shapes of the inputs.
    machine : Environment
        Where it failed.
    provider : Provider
        What ran it.

    Returns
    -------
    str
        Markdown, as :func:`write_issue`.

    Raises
    ------
    OrtMeterError
        The script does not fail.
    """
    version = (output_of(str(release.python), "-I", "-c", _VERSION) or release.name).strip()
    fails = f"onnxruntime {version}"
    return _issue(
        f"{name}: a valid model fails with {fails}",
        f"A valid model ({name}; inputs {inputs}) fails with {fails}: {told}",
        _shown(script, [*printed.values(), f"{fails}: {_failure_of(script, release)}"]),
        _system(machine, provider, version),
        name,
    )


def write_wrong_fusion(
    wrong: WrongFusion,
    optimizer: str,
    script: str,
    printed: Mapping[str, str],
    machine: Environment,
) -> str:
    """Write an issue for ONNX Runtime: an optimizer that changes what a model answers.

    Parameters
    ----------
    wrong : WrongFusion
        What is wrong.
    optimizer : str
        Without it, the result is right.
    script : str
        What shows it.
    printed : mapping of str to str
        What it printed with each release, by version, the last one being wrong.
    machine : Environment
        Where it ran.

    Returns
    -------
    str
        Markdown, as :func:`write_issue`.
    """
    last = list(printed)[-1]
    told = (
        f"With onnxruntime {last}, a session optimized at level {wrong.level!r} is wrong "
        f"({wrong.what}): {wrong.told}. It is right with `disabled_optimizers=[{optimizer!r}]`. "
        f"Those that agree: {wrong.judges}."
    )
    shown, system = _shown(script, printed.values()), _system(machine, Provider("cpu"), last)
    return _issue(f"{optimizer} changes the result", told, shown, system, optimizer)


def _failure_of(script: str, release: Release) -> str:
    """Run a script that fails, and return its error, or the signal that killed it."""
    done = _ran(script, release)
    if not done.returncode:
        raise OrtMeterError(
            f"{release.name}: with the default settings of a session, the script runs: there is "
            "nothing to report"
        )
    is_killed = done.returncode < 0
    return killed_by(done.returncode) if is_killed else done.stderr.strip().rpartition("\n")[2]


def _issue(
    title: str,
    told: str,
    shown: str,
    system: Mapping[str, str],
    searched: str,
    *,
    more: Mapping[str, str] | None = None,
) -> str:
    """Write the title, the fields of the template, then what the reader does before sending.

    More fields are for the template of performance.
    """
    asked = quote_plus(f"is:issue {searched}")
    template = "05-performance.yml" if more else "08-general.yml"
    end = (
        f"Nothing was sent. Is it known? <{_TRACKER}?q={asked}>. If not, write the use case and "
        f"paste the fields: <{_TRACKER}/new?template={template}>\n"
    )
    first = {"Describe the issue": told, "To reproduce": shown, "Urgency": "Use case: ..."}
    fields = {**first, **system, **(more or {})}
    parts = (f"### {name}\n\n{text}" for name, text in fields.items())
    return "\n\n".join([f"# {title}", *parts, "---", end])


def _slower(cells: pd.DataFrame, case: str, releases: Sequence[str]) -> list[str]:
    """Return a title and sentences, the last one on when it began; nothing if it is not slower."""
    last, words = releases[-1], in_words(case)
    lost = claimed(cells, last, "slower").query("case == @case").reset_index()
    for row in lost.sort_values("threads").head(1).to_dict("records"):
        times = Estimate(row["speedup"], row["low"], row["high"]).inverse
        before, after = (format_seconds(row[side] * 1e-6) for side in ("before", "after"))
        beside = f"with onnxruntime {last} than with {row['baseline']}"
        good = releases[releases.index(row["since"]) - 1]
        title = f"[Performance] {words}: {times.value:.2g} times slower {beside}"
        told = f"{words}: a run takes {times} times longer {beside}, {after} instead of {before}"
        first = (
            f"Of {enumerate_items(releases)}, {row['since']} is the first slow one, after {good}."
        )
        return [title, f"{told} ({plural(row['threads'], 'thread')}).", first]
    return []


def _issue_rows(
    cells: pd.DataFrame, times: pd.DataFrame, inputs: Mapping[str, str]
) -> Iterator[list[str]]:
    """Write a row for each case and number of threads, in the last release."""
    medians = times.groupby(level=["threads", "case"], sort=False).median()
    slower = estimates(cells, slower=True).xs(times.columns[-1], level="candidate")
    for threads, case in medians.index:
        shown = ["absent" if math.isnan(t) else digits(t) for t in medians.loc[threads, case]]
        ratio = str(slower.get((threads, case), ""))
        yield [case, inputs.get(case, ""), str(threads), *shown, ratio]


def _markdown(rows: Sequence[Sequence[str]], releases: Sequence[str]) -> str:
    header = ["case", "inputs", "threads", *(f"{name} (µs)" for name in releases), "times slower"]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _shown(script: str, outputs: Iterable[str], where: str = "") -> str:
    """Write a script and what it printed."""
    output = "\n".join(["```", *outputs, "```"])
    return f"```python\n{script.rstrip()}\n```\n\nIts output{where}:\n\n{output}"


def _system(machine: Environment, provider: Provider, version: str) -> dict[str, str]:
    name = provider.execution_provider
    return {
        "Platform": platform.system().replace("Darwin", "Mac"),
        "OS Version": machine.system,
        "ONNX Runtime Installation": "Released Package",
        "ONNX Runtime Version or Commit ID": version,
        "ONNX Runtime API": "Python",
        "Architecture": _ARCHITECTURES.get(platform.machine(), "Other / Unknown"),
        "Execution Provider": "Default CPU" if provider.is_cpu else name.partition("Execution")[0],
        "Execution Provider Library Version": "_No response_",
    }
