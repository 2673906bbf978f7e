"""Latencies under load: several callers, requests that arrive at a rate, runs after a pause."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ortmeter.cli.options import number, split
from ortmeter.cli.report import Report
from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Estimate, Speedup, common_unit, rounded
from ortmeter.optional import pd
from ortmeter.plotting.load import load_plot
from ortmeter.runtime.settings import DENORMALS
from ortmeter.study.writer import enumerate_items, sentences
from ortmeter.timing.bench import why_isolated
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.percentiles import MISSING, MISSING_NOTE, percentile_texts
from ortmeter.workloads.load import Load, Point, compare_best, compare_throughput, measure_load
from ortmeter.workloads.pauses import AfterPause, measure_pauses

_MAX_CALLERS = 256
_CONFIDENCE = 0.99
_BUDGET_S, _LEAST_S = 10.0, 0.01
_P99 = 99
_ENOUGH_REQUESTS = 1000
_NO_QUEUE = f"{MISSING_NOTE}, or a queue not known to be stable"

_Calls = Mapping[str, list[Callable[[], object]]]


def add_options(parser: ArgumentParser) -> None:
    """Declare the options."""
    load = parser.add_argument_group("load")
    load.add_argument(
        "--callers",
        metavar="1,2,4",
        help="numbers of threads that call one session again and again: latency and throughput",
    )
    load.add_argument(
        "--rate",
        metavar="50,100",
        help="requests per second, at random times: latency from the arrival, queue included",
    )
    load.add_argument("--sessions", action="store_true", help="a session for each thread")
    load.add_argument(
        "--gap",
        metavar="0,0.01,0.1,1",
        help="seconds of pause before a run: latency after it, CPU time of both",
    )


class LoadRuns(NamedTuple):
    """Loads of each candidate: numbers of callers, rates of requests, pauses in seconds."""

    callers: Sequence[int]
    rates: Sequence[float]
    gaps: Sequence[float]
    several: bool  # sessions
    budget_s: float

    def fill(self, report: Report, variants: Mapping[str, SessionSpec]) -> int:
        """Fill the report with what was asked, one section for each option."""
        if why := why_isolated(variants):
            raise InvalidArgumentError(
                f"{why}. Accepted with --callers, --rate and --gap: one candidate, or several with "
                f"--threads 1, or --spinning during-run or off, and one value of {DENORMALS}"
            )
        callers, rates, gaps = self.callers, self.rates, self.gaps
        loads = (len(callers) + len(rates) + len(gaps)) * len(variants)
        seconds = max(self.budget_s / loads, _LEAST_S)
        calls = _calls(variants, max([1, *callers]), several=self.several)
        if callers:
            points = {(n, k): Point(calls[n][:k]) for n in calls for k in callers}
            _fill_callers(report, measure_load(points, seconds=seconds), list(calls), callers)
        if rates:
            queues = {(n, rate): Point(calls[n][:1], rate) for n in calls for rate in rates}
            _fill_rates(report, measure_load(queues, seconds=seconds))
        if gaps:
            _fill_gaps(report, calls, gaps, seconds)
        return 0


def read_load(options: Namespace) -> LoadRuns | None:
    """Read the options of this mode, and check those that go together; None if it has none."""
    if options.sessions and options.callers is options.rate is None:
        raise InvalidArgumentError("--sessions needs --callers or --rate")
    if options.callers is options.rate is options.gap is None:
        return None
    if options.repeat is not None or options.processes is not None:
        raise InvalidArgumentError(
            "--repeat and --processes are for interleaved runs. Accepted with --callers, --rate "
            "and --gap: --budget, which they share"
        )
    return LoadRuns(
        _numbers("--callers", options.callers, number(1, _MAX_CALLERS)),
        _numbers("--rate", options.rate, number(1e-3, 1e6, float)),
        _numbers("--gap", options.gap, number(0, 3600, float)),
        options.sessions,
        _BUDGET_S if options.budget is None else options.budget,
    )


def _calls(variants: Mapping[str, SessionSpec], threads: int, *, several: bool) -> _Calls:
    """Make a call for each thread, each with its own binding; the first run of each is over."""
    calls = {}
    for name, variant in variants.items():
        sessions = [variant.session() for _ in range(threads if several else 1)]
        calls[name] = [variant.call(sessions[rank % len(sessions)]) for rank in range(threads)]
        for call in calls[name]:
            call()
    return calls


def _fill_callers(
    report: Report, loads: Mapping[tuple[str, int], Load], names: list[str], callers: Sequence[int]
) -> None:
    extra = {key: _bounds("requests/s", load.throughput()) for key, load in loads.items()}
    rows = [{"series": name, "callers": k, **row} for (name, k), row in extra.items()]
    turns = len(loads[names[0], callers[0]].turns)
    title = "Throughput of callers that wait for their results"
    report.add(
        f"Callers: {turns} turn{'s' if turns > 1 else ''} each",
        partial(load_plot, pd.DataFrame(rows), x="callers", y="requests/s", title=title),
        *_items(loads, "callers", extra, "Latency of a run with several callers"),
    )
    told = sentences(_compare_callers(loads, names, callers))
    report.conclude(*(f"{report.beside}{text}" for text in told))


def _compare_callers(
    loads: Mapping[tuple[str, int], Load], names: list[str], callers: Sequence[int]
) -> Iterator[Speedup | str]:
    """Compare the best number of callers with the first one, then candidates at that number."""
    first, *others = callers
    for name in names:
        place = {"candidate": name} if len(names) > 1 else {}
        if others:
            several, label = {k: loads[name, k] for k in others}, f"callers={first}"
            best = compare_best("throughput, callers={}", several, label, loads[name, first])
            yield best.at(**place)
        else:
            whose = f"candidate {name}: " if place else ""
            speed = loads[name, first].throughput().written()
            yield f"{whose}{speed} requests/s with callers={first} (99% CI)"
    last = callers[-1]
    each = _level_of_each(len(names) - 1)
    for name in names[1:]:
        subject, pair = f"throughput, {name}", (names[0], loads[names[0], last])
        claim = compare_throughput(subject, loads[name, last], *pair, confidence=each)
        yield claim.at(callers=last)


def _level_of_each(claims: int) -> float:
    """Return the level of each interval, so that all of them hold together (Bonferroni)."""
    return 1 - (1 - _CONFIDENCE) / max(claims, 1)


def _fill_rates(report: Report, loads: Mapping[tuple[str, float], Load]) -> None:
    extra = {
        key: {
            "requests": load.requests,
            "busy": load.utilization().value,
            "queue": load.state(),
        }
        for key, load in loads.items()
    }
    report.add(
        "Requests at a rate: latency from the arrival",
        *_items(loads, "rate", extra, "Latency from the arrival of a request", _NO_QUEUE),
    )
    by_name: dict[str, dict[float, Load]] = {}
    for (name, rate), load in loads.items():
        by_name.setdefault(name, {})[rate] = load
    for name, own in by_name.items():
        report.conclude(f"{_prefix(name, by_name)}{_rate_sentence(own)}")


def _rate_sentence(loads: Mapping[float, Load]) -> str:
    """Say up to which rate the queue is stable, and why not above."""
    states = {rate: load.state() for rate, load in loads.items()}
    kept = max((rate for rate, state in states.items() if state == "stable"), default=0.0)
    rest: dict[str, list[str]] = {}
    for rate, state in states.items():
        if rate > kept:
            few = loads[rate].requests < _ENOUGH_REQUESTS
            why = "too few independent requests" if few else "not known to be stable"
            rest.setdefault(why if state == "undecided" else state, []).append(f"{rate:g}")
    others = "".join(f"; {why} at {enumerate_items(own)}/s" for why, own in rest.items())
    if not kept:
        return f"no queue is stable{others}."
    known = [percentile for percentile in loads[kept].percentiles() if percentile.interval]
    tail = f": {known[-1].name} is {known[-1].seconds} (99% CI)" if known else ""
    return f"the queue is stable up to {kept:g}/s{tail}{others}."


def _fill_gaps(report: Report, calls: _Calls, gaps: Sequence[float], seconds: float) -> None:
    firsts = {name: own[0] for name, own in calls.items()}
    pauses = measure_pauses(firsts, gaps, seconds=seconds * len(gaps) * len(calls))
    first, *others = gaps
    baseline, each = f"gap={first:g}", _level_of_each(len(others))
    extra: dict[tuple[str, float], dict[str, object]] = {}
    for (name, gap), pause in pauses.items():
        extra[name, gap] = {}
        if gap != first:
            shortest = pauses[name, first]
            claim = pause.compare(shortest, f"gap={gap:g}", baseline, confidence=each)
            bounds = _bounds(f"speedup over {baseline}", claim.estimate)
            extra[name, gap] = {**bounds, "verdict": claim.verdict}
            report.conclude(f"{_prefix(name, calls)}after a pause, {claim}.")
        elif others:
            bounds = _bounds(f"speedup over {baseline}", Estimate(1.0))
            extra[name, gap] = {**bounds, "verdict": ""}
        else:
            median = pause.percentiles([50])[0]
            told = f"{median.seconds} (99% CI)" if median.interval else "undecided, too few rounds"
            report.conclude(f"{_prefix(name, calls)}median after a pause of {gap:g} s: {told}.")
        extra[name, gap]["CPU (ms)"] = 1e3 * pause.cpu
    rounds = len(pauses[next(iter(calls)), first].seconds)
    report.add(
        f"After a pause of gap seconds, CPU time of the pause and the run: {rounds} rounds",
        *_items(pauses, "gap", extra, "Latency of a run after a pause"),
    )


def _bounds(column: str, estimate: Estimate) -> dict[str, float]:
    ends = {"low": rounded(estimate.low), "high": rounded(estimate.high)}
    return {column: rounded(estimate.value), **ends}


def _items(
    measured: Mapping[tuple[str, Any], Load] | Mapping[tuple[str, Any], AfterPause],
    axis: str,
    extra: Mapping[tuple[str, Any], Mapping[str, object]],
    title: str,
    dash: str = MISSING_NOTE,
) -> list[Any]:
    """Return a table of these columns, that of the percentiles, and their plot if it has a dot."""
    values = {key: taken.percentiles() for key, taken in measured.items()}
    unit = common_unit([v[0].value for v in values.values() if v] or [1e-3])
    names = {name for name, _ in measured}
    texts = {key: percentile_texts(levels, unit) for key, levels in values.items()}
    index = pd.MultiIndex.from_tuples(measured, names=["candidate", axis])
    items: list[Any] = []
    for cells in (extra, texts):  # side by side, they would not fit in a terminal
        table = pd.DataFrame([*cells.values()], index)
        table = table if len(names) > 1 else table.droplevel(0)
        why = dash if (table == MISSING).any(axis=None) else ""
        items.append(table.rename_axis(columns=why))
    dots = [
        (f"{_prefix(name, names, ', ')}{level.name}", place, level.value, *ends)
        for (name, place), levels in values.items()
        for level in levels
        if level.level in {50, _P99} and (ends := level.interval)
    ]
    if dots:
        frame = pd.DataFrame(dots, columns=["series", axis, "seconds", "low", "high"])
        items.append(partial(load_plot, frame, x=axis, title=title))
    return items


def _prefix(name: str, names: Collection[str], mark: str = ": ") -> str:
    return f"{name}{mark}" if len(names) > 1 else ""


def _numbers(option: str, text: str | None, read: Callable[[str], float]) -> list[Any]:
    """Read numbers separated by commas, in increasing order."""
    return [] if text is None else sorted(split(option, text, read))
