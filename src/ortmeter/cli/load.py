"""Latencies under load: several callers, requests that arrive at a rate, runs after a pause."""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pandas as pd

from ortmeter.cli.options import number, split
from ortmeter.cli.report import Report
from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Claim, Speedup, common_unit, fact, rounded
from ortmeter.plotting.load import load_plot
from ortmeter.runtime.settings import DENORMALS
from ortmeter.study.writer import enumerate_items
from ortmeter.timing.bench import why_isolated
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.percentiles import TOO_FEW, explain_dashes, percentile_texts
from ortmeter.workloads.load import Load, Point, compare_best, compare_throughput, measure_load
from ortmeter.workloads.pauses import AfterPause, measure_pauses

_MAX_CALLERS, _MAX_BATCH = 256, 2**20
_AUTO = (0.3, 0.5, 0.7, 0.9)  # of the capacity
_CAPACITY_SHARE = 0.1  # of the time of a rate
_CONFIDENCE = 0.99
_BUDGET_S, _LEAST_S = 10.0, 0.01
_P99 = 99
_REQUESTS_OF_P99 = 1000
_FEW_REQUESTS = "too few independent requests"
_NO_QUEUE = f"{TOO_FEW}, or a queue not known to be stable"

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
        help="requests that arrive in a second, at random: latency from the arrival, queue "
        "included; auto takes 30, 50, 70 and 90%% of the capacity of the first candidate",
    )
    load.add_argument(
        "--workers", type=number(1, _MAX_CALLERS), help="threads that serve the requests (1)"
    )
    load.add_argument(
        "--target-ms",
        type=number(0, kind=float),
        help="with --rate, find the highest rate whose p99 is below",
    )
    load.add_argument(
        "--batch",
        type=number(1, _MAX_BATCH),
        help="requests that a run answers, the rows of the inputs (1): with --rate, it waits for "
        "all of them",
    )
    load.add_argument("--sessions", action="store_true", help="a session for each thread")
    load.add_argument(
        "--gap",
        metavar="0,0.01,0.1,1",
        help="seconds of pause before a run: latency after it, CPU time of both",
    )
    load.add_argument(
        "--seconds",
        type=number(_LEAST_S, kind=float),
        help="for each candidate and load; by default they share --budget",
    )


def is_asked(options: Namespace) -> bool:
    """Whether an option of this mode is given; check those that go together."""
    if options.rate is None and not (options.workers is None and options.target_ms is None):
        raise InvalidArgumentError("--workers and --target-ms need --rate")
    if options.sessions and options.rate is None and options.callers is None:
        raise InvalidArgumentError("--sessions needs --callers or --rate")
    if options.batch is not None and options.rate is None and options.callers is None:
        raise InvalidArgumentError("--batch needs --callers or --rate")
    if options.callers is options.rate is options.gap is None:
        if options.seconds is not None:
            raise InvalidArgumentError("--seconds needs --callers, --rate or --gap")
        return False
    if options.repeat is not None or options.processes is not None:
        raise InvalidArgumentError(
            "--repeat and --processes are for runs in turn. Accepted with --callers, --rate and "
            "--gap: --seconds"
        )
    return True


def fill(options: Namespace, report: Report, variants: Mapping[str, SessionSpec]) -> None:
    """Fill the report with what was asked, one section for each option."""
    if why := why_isolated(variants):
        raise InvalidArgumentError(
            f"{why}. Accepted with --callers, --rate and --gap: one candidate, or several with "
            f"--threads 1, or --spinning during-run or off, and one value of {DENORMALS}"
        )
    callers = _numbers("--callers", options.callers, int, 1, _MAX_CALLERS)
    rates = [] if options.rate == "auto" else _numbers("--rate", options.rate, float, 1e-3, 1e6)
    gaps = _numbers("--gap", options.gap, float, 0, 3600)
    loads = len(callers) + (len(_AUTO) if options.rate == "auto" else len(rates)) + len(gaps)
    budget = _BUDGET_S if options.budget is None else options.budget
    seconds = options.seconds or max(budget / (loads * len(variants)), _LEAST_S)
    workers, batch = options.workers or 1, options.batch or 1
    calls = _calls(variants, max([1, workers, *callers]), several=options.sessions)
    if callers:
        _fill_callers(report, calls, callers, seconds, batch)
    if options.rate is not None:
        rates = rates or _auto_rates(calls, workers, seconds, batch)
        _fill_rates(report, calls, rates, workers, seconds, options.target_ms, batch)
    if gaps:
        _fill_gaps(report, calls, gaps, seconds)


def _calls(variants: Mapping[str, SessionSpec], threads: int, *, several: bool) -> _Calls:
    """Make a call for each thread, each with its own binding; the first run of each is over."""
    calls = {}
    for name, variant in variants.items():
        one = None if several else variant.session()
        calls[name] = [
            variant.call(variant.session() if one is None else one) for _ in range(threads)
        ]
        for call in calls[name]:
            call()
    return calls


def _fill_callers(
    report: Report, calls: _Calls, callers: list[int], seconds: float, batch: int
) -> None:
    points = {(name, k): Point(calls[name][:k], batch=batch) for name in calls for k in callers}
    found = measure_load(points, seconds=seconds)
    speeds = {key: load.throughput() for key, load in found.items()}
    extra = {
        key: _bounds("requests/s", one.value, one.low, one.high) for key, one in speeds.items()
    }
    rows = [{"series": name, "callers": k, **row} for (name, k), row in extra.items()]
    turns = len(found[next(iter(found))].turns)
    title = "Throughput of callers that wait for their results"
    report.add(
        f"Callers: {turns} turn{'s' if turns > 1 else ''} each",
        partial(load_plot, pd.DataFrame(rows), x="callers", y="requests/s", title=title),
        *_items(found, "callers", extra, "Latency of a run with several callers"),
    )
    report.conclude(*_compare_callers(found, list(calls), callers))


def _compare_callers(
    found: Mapping[tuple[str, int], Load], names: list[str], callers: list[int]
) -> Iterator[Claim]:
    """Compare the best number of callers with the first one, then candidates at that number."""
    first, *others = callers
    for name in names:
        place = {"candidate": name} if len(names) > 1 else {}
        if not others:
            text = "{speed} requests/s with callers={first} (99%)"
            yield fact(text, place, speed=found[name, first].throughput().text, first=first)
            continue
        several = {k: found[name, k] for k in others}
        baseline = f"callers={first}", found[name, first]
        yield compare_best("throughput, callers={}", several, *baseline).at(**place)
    last = callers[-1]
    each = 1 - (1 - _CONFIDENCE) / max(len(names) - 1, 1)
    for name in names[1:]:
        pair = found[name, last], found[names[0], last]
        subject = f"throughput, {name}"
        claim = compare_throughput(subject, pair[0], names[0], pair[1], confidence=each)
        yield claim.at(callers=last)


def _auto_rates(calls: _Calls, workers: int, seconds: float, batch: int) -> list[float]:
    """Take shares of what the first candidate serves when requests never end."""
    first = next(iter(calls.values()))
    point = Point(first[:workers], batch=batch)
    found = measure_load({"": point}, seconds=_CAPACITY_SHARE * seconds)
    return [rounded(share * found[""].throughput().value, 3) for share in _AUTO]


def _fill_rates(  # noqa: PLR0917 - private, called once with everything
    report: Report,
    calls: _Calls,
    rates: list[float],
    workers: int,
    seconds: float,
    target_ms: float | None,
    batch: int,
) -> None:
    points = {
        (name, rate): Point(calls[name][:workers], rate, batch) for name in calls for rate in rates
    }
    found = measure_load(points, seconds=seconds)
    extra = {
        key: {
            "requests": load.requests,
            "busy": rounded(load.utilization().value, 2),
            "queue": load.state(),
        }
        for key, load in found.items()
    }
    report.add(
        f"Requests at a rate: latency from the arrival, {workers} at a time",
        *_items(found, "rate", extra, "Latency from the arrival of a request", _NO_QUEUE),
    )
    for name in calls:
        mine = {rate: found[name, rate] for rate in rates}
        report.conclude(f"{_prefix(name, list(calls))}{_rate_sentence(mine, target_ms)}")


def _rate_sentence(found: Mapping[float, Load], target_ms: float | None) -> str:
    reasons = {rate: _why_not(load, target_ms) for rate, load in found.items()}
    kept = max((rate for rate, reason in reasons.items() if not reason), default=0.0)
    rest: dict[str, list[str]] = {}
    for rate, reason in reasons.items():
        if reason and rate > kept:
            rest.setdefault(reason, []).append(f"{rate:g}")
    others = "".join(f"; {why} at {enumerate_items(some)}/s" for why, some in rest.items())
    if target_ms is None:
        if not kept:
            return f"no queue is stable{others}."
        known = [one for one in found[kept].percentiles() if one.interval]
        tail = f": {known[-1].name} is {known[-1].seconds} (99%)" if known else ""
        return f"the queue is stable up to {kept:g}/s{tail}{others}."
    more = f" Ask for --seconds {_enough(found)} or more." if _FEW_REQUESTS in rest else ""
    if not kept:
        return f"no rate is known to keep p99 below {target_ms:g} ms{others}.{more}"
    p99 = found[kept].percentiles([_P99])[0].seconds
    return (
        f"{kept:g}/s is the highest rate asked that keeps p99 below {target_ms:g} ms: {p99} (99%)"
        f"{others}.{more}"
    )


def _why_not(load: Load, target_ms: float | None) -> str:
    """Say why a rate is not known to keep its queue and the target, nothing if it does."""
    state = load.state()
    if state == "undecided" and load.requests >= _REQUESTS_OF_P99:
        return "not known to be stable"
    if state != "stable" or target_ms is None:
        return {"stable": "", "undecided": _FEW_REQUESTS}.get(state, state)
    known = {one.level: ends for one in load.percentiles() if (ends := one.interval)}
    level = max(known, default=0.0)
    low, high = known.get(level, (0.0, math.inf))
    if 1e3 * low > target_ms:
        return "above"  # p99 is not below another percentile
    if level < _P99:
        return _FEW_REQUESTS
    return "" if 1e3 * high <= target_ms else "undecided"


def _enough(found: Mapping[float, Load]) -> int:
    """Return seconds that may do: the interval of p99, and twice what did not."""
    rate = min(found)
    return math.ceil(max(_REQUESTS_OF_P99, 2 * found[rate].requests) / rate)


def _fill_gaps(report: Report, calls: _Calls, gaps: list[float], seconds: float) -> None:
    firsts = {name: some[0] for name, some in calls.items()}
    found = measure_pauses(firsts, gaps, seconds=seconds * len(gaps) * len(calls))
    first, *others = gaps
    each = 1 - (1 - _CONFIDENCE) / max(len(others), 1)
    claims = {
        (name, gap): found[name, gap].compare(
            found[name, first], f"gap={gap:g}", f"gap={first:g}", confidence=each
        )
        for name, gap in found
        if gap != first
    }
    extra = {
        key: {
            **(_claim_row(claims.get(key), f"speedup over gap={first:g}") if others else {}),
            "CPU (ms)": rounded(1e3 * found[key].cpu, 3),
        }
        for key in found
    }
    items = _items(found, "gap", extra, "Latency of a run after a pause")
    rounds = len(found[next(iter(calls)), first].seconds)
    title = f"After a pause of gap seconds, CPU time of the pause and the run: {rounds} rounds"
    report.add(title, *items)
    names = list(calls)
    for (name, gap), pause in found.items():
        if claim := claims.get((name, gap)):
            report.conclude(f"{_prefix(name, names)}after a pause, {claim}.")
        elif not others:
            median = pause.percentiles([50])[0]
            told = f"{median.seconds} (99%)" if median.interval else "undecided, too few rounds"
            report.conclude(f"{_prefix(name, names)}median after a pause of {gap:g} s: {told}.")


def _claim_row(claim: Speedup | None, column: str) -> dict[str, object]:
    if claim is None:
        return {**_bounds(column, 1.0, None, None), "verdict": ""}
    return {**_bounds(column, claim.ratio, claim.low, claim.high), "verdict": claim.verdict}


def _bounds(
    column: str, value: float | None, low: float | None, high: float | None
) -> dict[str, float]:
    return {column: rounded(value), "low": rounded(low), "high": rounded(high)}


def _items(
    found: Mapping[tuple[str, Any], Load] | Mapping[tuple[str, Any], AfterPause],
    axis: str,
    extra: Mapping[tuple[str, Any], Mapping[str, object]],
    title: str,
    dash: str = TOO_FEW,
) -> list[Any]:
    """Return a table of these columns, that of the percentiles, and their plot if it has a dot."""
    values = {key: one.percentiles() for key, one in found.items()}
    unit = common_unit([v[0].value for v in values.values() if v] or [1e-3])
    names = list(dict.fromkeys(name for name, _ in found))
    texts = {key: percentile_texts(several, unit) for key, several in values.items()}
    items: list[Any] = []
    for cells in (extra, texts):  # side by side, they would not fit in a terminal
        table = pd.DataFrame([*cells.values()], pd.MultiIndex.from_tuples(found))
        table.index.names = ["candidate", axis]
        items.append(explain_dashes(table if len(names) > 1 else table.droplevel(0), dash))
    dots = [
        (f"{name}, {one.name}" if len(names) > 1 else one.name, place, one.value, *ends)
        for (name, place), several in values.items()
        for one in several
        if one.level in {50, _P99} and (ends := one.interval)
    ]
    if dots:
        frame = pd.DataFrame(dots, columns=["series", axis, "seconds", "low", "high"])
        items.append(partial(load_plot, frame, x=axis, title=title))
    return items


def _prefix(name: str, names: list[str]) -> str:
    return f"{name}: " if len(names) > 1 else ""


def _numbers(option: str, text: str | None, kind: type, least: float, most: float) -> list[Any]:
    """Read numbers separated by commas, in increasing order."""
    if text is None:
        return []
    what = "integers" if kind is int else "numbers"
    auto = "auto, or " if option == "--rate" else ""
    try:
        values = split(option, text, kind)
    except ValueError:
        values = [math.nan]
    if all(least <= value <= most for value in values):
        return sorted(values)
    raise InvalidArgumentError(
        f"{option}: got {text!r}, expected {auto}{what} from {least:g} to {most:g}, separated by "
        "commas"
    )
