"""Is this machine fit to measure? What would disturb a measurement, each with its evidence."""

import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ortmeter.errors import OrtMeterError
from ortmeter.runtime.control_groups import group_files
from ortmeter.runtime.environment import core_numbers
from ortmeter.runtime.gpu_fitness import gpu_findings
from ortmeter.runtime.providers import Provider

__all__ = ["fitness"]

_WINDOW_S = 0.2
_BUSY = 0.2  # cores: what a shell and a few services take
_BUSY_SHARE = 0.05  # of the cores, when some are left to spare
_STOLEN_SHARE = 0.03
_SWAP_SHARE = 0.05  # of the memory
_LONGEST = 32  # letters kept of what a file says
_DIGITS = 20  # of 64 bits


class Counters(NamedTuple):
    """What grows while a machine works; None where the system does not tell."""

    at: float | None  # seconds since the machine started
    own: float  # CPU seconds of this process and of its children that ended
    busy: float | None  # CPU seconds of all processes on the cores that this one may use
    stolen: float | None  # CPU seconds that the hypervisor gave to others
    swapped: int | None  # pages, in and out
    throttled: int | None  # times that a core slowed down because of heat
    held: int | None  # times that the quota stopped this container


@dataclass(frozen=True)
class Fitness:
    """What would disturb a measurement on this machine.

    Parameters
    ----------
    findings : tuple of str
        Sentences, each with its evidence and what to do about it.
    unknown : tuple of str
        What the system does not tell: a virtual machine hides frequencies.
    counters : Counters
        State of the machine, from which a later check counts.
    """

    findings: tuple[str, ...]
    unknown: tuple[str, ...]
    counters: Counters = field(compare=False, repr=False)

    @property
    def is_fit(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON accepts."""
        return {
            "is_fit": self.is_fit,
            "findings": list(self.findings),
            "unknown": list(self.unknown),
        }

    def __str__(self) -> str:
        if self.findings:
            return f"not fit to measure: {'; '.join(self.findings)}"
        hidden = f" (not told by this system: {', '.join(self.unknown)})" if self.unknown else ""
        return f"fit to measure{hidden}"


def fitness(
    threads: int = 1,
    provider: Provider | None = None,
    *,
    since: Fitness | None = None,
    root: Path = Path("/"),
    pause: Callable[[float], object] = time.sleep,
) -> Fitness:
    """Look for what would disturb a measurement: takes 0.2 s.

    Parameters
    ----------
    threads : int
        Threads that will be asked for, 0 for as many as there are cores.
    provider : Provider, optional
        On CUDA, its GPU is looked at too, with ``nvidia-ml-py``.
    since : Fitness, optional
        An earlier check: loads and events are counted from there, without waiting. After a
        measurement, it tells what happened meanwhile.
    root : Path
        Where ``proc`` and ``sys`` are.
    pause : callable
        Waits for a number of seconds.

    Returns
    -------
    Fitness
        Attributes ``findings``, ``unknown`` and ``is_fit``; its text is one line.

    Examples
    --------
    >>> found = fitness(threads=4096)
    >>> found.is_fit, "4096 threads" in str(found)
    (False, True)
    """
    cores = core_numbers()
    if since is None:
        before = _count(root, cores)
        pause(_WINDOW_S)
    else:
        before = since.counters
    after = _count(root, cores)
    checks: dict[str, list[str] | None] = {
        "load": _load(before, after, threads, len(cores)),
        "quota": _quota(before, after, threads, len(cores), root),
        "frequency": _frequency(root, cores),
        "thermal throttling": _heat(before, after),
        "stolen time": _stolen(before, after, len(cores)),
        "swap": _swap(before, after, root),
    }
    if provider is not None and provider.name == "cuda":
        checks["GPU"] = gpu_findings(provider)
    findings = tuple(one for found in checks.values() for one in found or ())
    unknown = tuple(name for name, found in checks.items() if found is None)
    return Fitness(findings, unknown, after)


def refuse_unfit(found: Fitness) -> None:
    """Refuse to measure on a machine that is not fit."""
    if not found.is_fit:
        raise OrtMeterError(
            f"this machine is {found}. Accepted: one that is fit, or any without --strict"
        )


def _count(root: Path, cores: Collection[int]) -> Counters:
    own = sum(os.times()[:4])
    ticks = [times for core, times in _core_times(root) if core in cores]
    # User (guests are in it), nice, system, interrupts; then what the hypervisor took.
    busy = [sum(times[i] for i in (0, 1, 2, 5, 6)) for times in ticks]
    stolen = [times[7] for times in ticks]
    hertz = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    swapped = _numbers(root / "proc/vmstat", "pswpin", "pswpout")
    texts = _of_cores(root, cores, "thermal_throttle/core_throttle_count")
    throttled = [count for text in texts if (count := _integer(text)) is not None]
    held = [
        _numbers(file, "nr_throttled")
        for file in group_files("cpu.stat", "cpu", "cpu.stat", root=root)
    ]
    return Counters(
        at=_uptime(root),
        own=own,
        busy=sum(busy) / hertz if busy else None,
        stolen=sum(stolen) / hertz if stolen else None,
        swapped=sum(swapped.values()) if swapped else None,
        throttled=sum(throttled) if throttled else None,
        held=max((n for found in held for n in found.values()), default=None),
    )


def _core_times(root: Path) -> Iterator[tuple[int, list[int]]]:
    """Read ticks of each core: user, nice, system, idle, waiting, two interrupts, stolen."""
    for line in _read(root / "proc/stat").splitlines():
        name, *texts = line.split() or [""]
        core = name.removeprefix("cpu")
        if name != core and core.isdecimal() and len(texts) >= 8:  # noqa: PLR2004 - see above
            times = [_integer(text) for text in texts[:8]]
            yield int(core[:9]), [time or 0 for time in times]


def _uptime(root: Path) -> float | None:
    first = _read(root / "proc/uptime")[:_LONGEST].split()
    seconds, _, decimals = first[0].partition(".") if first else ("", "", "")
    whole, hundredths = _integer(seconds), _integer(decimals[:2])
    return None if whole is None or hundredths is None else whole + hundredths / 100


def _elapsed(before: Counters, after: Counters) -> float:
    """Seconds between two counts, zero when the system does not tell."""
    return 0.0 if before.at is None or after.at is None else max(after.at - before.at, 0.0)


def _load(before: Counters, after: Counters, threads: int, cores: int) -> list[str] | None:
    elapsed = _elapsed(before, after)
    if before.busy is None or after.busy is None or not elapsed:
        return None
    others = (after.busy - before.busy - (after.own - before.own)) / elapsed
    spared = 0 < threads < cores
    if others < (max(_BUSY, _BUSY_SHARE * cores) if spared else _BUSY):
        return []
    used = f"{min(others, cores):.1f} of the {cores} cores of this process"
    return [f"other processes use {used}: stop them, or wait"]


def _quota(
    before: Counters, after: Counters, threads: int, cores: int, root: Path
) -> list[str] | None:
    found = []
    if threads > cores:
        found.append(f"{threads} threads share {cores} cores: ask for {cores} at most")
    quota = cpu_quota(root)
    # Without a number, onnxruntime counts the cores of the machine, whatever the quota.
    asked = threads or cores
    if quota is not None and asked > quota:
        shared = f"{quota:.3g} cores for {asked} thread{'s' if asked > 1 else ''}"
        found.append(
            f"the quota of this container is {shared}, which stop when it is spent: ask for "
            f"{max(int(quota), 1)} at most"
        )
    if before.held is not None and after.held is not None and after.held > before.held:
        times = after.held - before.held
        found.append(f"the quota stopped this container {times} times: ask for fewer threads")
    return found


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the cores that the groups of this process may use, None without a limit."""
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    """List the limits of the groups, in cores."""
    for file in group_files("cpu.max", "cpu", "cpu.cfs_quota_us", root=root):
        texts = _read(file).split()
        if file.name != "cpu.max":
            texts += _read(file.with_name("cpu.cfs_period_us")).split()
        quota, period = [*map(_integer, texts[:2]), None, None][:2]
        if quota and period:
            yield quota / period


def _frequency(root: Path, cores: Collection[int]) -> list[str] | None:
    governors = set(_of_cores(root, cores, "cpufreq/scaling_governor"))
    folder = root / "sys/devices/system/cpu"
    boost = _read(folder / "cpufreq/boost").strip()
    no_turbo = _read(folder / "intel_pstate/no_turbo").strip()
    if not governors and not boost and not no_turbo:
        return None
    found = []
    if other := sorted(governors - {"performance"}):
        found.append(
            f"the frequency governor is {', '.join(other)}: set it with cpupower frequency-set -g "
            "performance"
        )
    if boost == "1" or no_turbo == "0":
        where = "cpufreq/boost" if boost == "1" else "intel_pstate/no_turbo"
        found.append(
            "the frequency is boosted while the CPU is cool and other cores are idle: write "
            f"{'0' if boost == '1' else '1'} into /sys/devices/system/cpu/{where}"
        )
    return found


def _heat(before: Counters, after: Counters) -> list[str] | None:
    if before.throttled is None or after.throttled is None:
        return None
    times = after.throttled - before.throttled
    return [f"heat slowed cores down {times} times: cool them, wait"] if times > 0 else []


def _stolen(before: Counters, after: Counters, cores: int) -> list[str] | None:
    elapsed = _elapsed(before, after)
    if before.stolen is None or after.stolen is None or not elapsed:
        return None
    share = (after.stolen - before.stolen) / (elapsed * cores)
    if share <= _STOLEN_SHARE:
        return []
    lost = f"the hypervisor gave {share:.0%} of the time of this virtual machine to others"
    return [f"{lost}: use a machine of your own, or measure in several processes"]


def _swap(before: Counters, after: Counters, root: Path) -> list[str] | None:
    memory = _numbers(root / "proc/meminfo", "MemTotal:", "SwapTotal:", "SwapFree:")
    if len(memory) < 3:  # noqa: PLR2004 - all of them
        return None
    found = []
    used = memory["SwapTotal:"] - memory["SwapFree:"]
    if used > _SWAP_SHARE * memory["MemTotal:"]:
        found.append(
            f"{used / 2**20:.1f} GiB of memory are swapped out, and read from the disk when they "
            "are needed: free memory, then swapoff -a"
        )
    if before.swapped is not None and after.swapped is not None and after.swapped > before.swapped:
        pages = after.swapped - before.swapped
        found.append(f"{pages} pages are swapped meanwhile: free memory")
    return found


def _of_cores(root: Path, cores: Collection[int], file: str) -> list[str]:
    """Read a file of each core, in one short line; those that are missing are left out."""
    folder = root / "sys/devices/system/cpu"
    texts = (" ".join(_read(folder / f"cpu{core}" / file).split()) for core in sorted(cores))
    return [re.sub(r"\W", "?", text[:_LONGEST]) for text in texts if text]


def _numbers(file: Path, *names: str) -> dict[str, int]:
    """Read the numbers that follow these names, one a line; others are left out."""
    pairs = ([*line.split(), "", ""][:2] for line in _read(file).splitlines())
    return {
        name: number
        for name, text in pairs
        if name in names and (number := _integer(text)) is not None
    }


def _integer(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def _read(file: Path) -> str:
    """Read a file of the system, empty when it cannot be read."""
    try:
        with file.open("rb") as stream:
            return stream.read(2**22).decode("ascii", "replace")
    except (OSError, ValueError):
        return ""
