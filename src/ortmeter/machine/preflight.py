"""Is this machine fit to measure? What would disturb a measurement, each with its evidence."""

import os
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ortmeter.errors import OrtMeterError
from ortmeter.machine.gpu import gpu_findings
from ortmeter.runtime.cpu import core_numbers, group_files
from ortmeter.runtime.providers import Provider

__all__ = ["preflight"]

_WINDOW_S = 0.2
_BUSY = 0.2  # cores: what a shell and a few services take
_BUSY_SHARE = 0.05  # of the cores, when some are left to spare
_STOLEN_SHARE = 0.03
_SWAP_SHARE = 0.05  # of the memory
_LONGEST = 32  # letters kept of what a file says
_DIGITS = 20  # of 64 bits
_OTHERS, _HYPERVISOR = "other processes use", "the hypervisor gave"


class Counters(NamedTuple):
    """What grows while a machine works; None where the system does not tell."""

    at: float | None  # seconds since the machine started
    own: float | None  # CPU seconds of this process and of its children that ended
    busy: float | None  # CPU seconds of all processes on the cores that this one may use
    stolen: float | None  # CPU seconds that the hypervisor gave to others
    swapped: float | None  # pages, in and out
    throttled: float | None  # times that a core slowed down because of heat
    held: float | None  # times that the quota stopped this container


@dataclass(frozen=True)
class Preflight:
    """What would disturb a measurement on this machine.

    Parameters
    ----------
    findings : tuple of str
        Sentences, each with its evidence and what to do about it.
    notes : tuple of str
        What makes latencies vary without a fault of the machine: a boosted frequency.
    unknown : tuple of str
        What the system does not tell: a virtual machine hides frequencies.
    counters : Counters
        State of the machine, from which a later check counts.
    """

    findings: tuple[str, ...]
    notes: tuple[str, ...]
    unknown: tuple[str, ...]
    counters: Counters = field(compare=False, repr=False)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def is_shared(self) -> bool:
        """Whether others use the cores: threads cannot be judged."""
        return any(text.startswith((_OTHERS, _HYPERVISOR)) for text in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON accepts."""
        names = ("is_quiet", "findings", "notes", "unknown")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        if self.findings:
            return f"not fit to measure: {'; '.join(self.findings)}"
        unknown = f"not reported by this system: {', '.join(self.unknown)}" if self.unknown else ""
        more = "; ".join(filter(None, (*self.notes, unknown)))
        return f"no disturbance was seen{f' ({more})' if more else ''}"


def preflight(
    threads: int = 1,
    provider: Provider | None = None,
    *,
    since: Preflight | None = None,
    root: Path = Path("/"),
    pause: Callable[[float], object] = time.sleep,
) -> Preflight:
    """Look for what would disturb a measurement: takes 0.2 s.

    Parameters
    ----------
    threads : int
        Threads that will be asked for, 0 for as many as there are cores.
    provider : Provider, optional
        On CUDA, its GPU is looked at too, with ``nvidia-ml-py``.
    since : Preflight, optional
        An earlier check: loads and events are counted from there, without waiting. After a
        measurement, it tells what happened meanwhile.
    root : Path
        Where ``proc`` and ``sys`` are.
    pause : callable
        Waits for a number of seconds.

    Returns
    -------
    Preflight
        Attributes ``findings``, ``notes``, ``unknown`` and ``is_quiet``; its text is one line.

    Examples
    --------
    >>> found = preflight(threads=4096)
    >>> found.is_quiet, "4096 threads" in str(found)
    (False, True)
    """
    cores = core_numbers()
    if since is None:
        before = _count_events(root, cores)
        pause(_WINDOW_S)
    else:
        before = since.counters
    after = _count_events(root, cores)
    spent = Counters(*map(_grown, before, after))
    boost = _boost(root)
    checks: dict[str, list[str] | None] = {
        "load": _load(spent, threads, len(cores)),
        "quota": _quota(spent, threads, len(cores), root),
        "frequency": _governor(root, cores, boost),
        "thermal throttling": _heat(spent),
        "stolen time": _stolen(spent, len(cores)),
        "swap": _swap(spent, root),
    }
    if provider is not None and provider.on_cuda:
        checks["GPU"] = gpu_findings(provider)
    findings = tuple(finding for told in checks.values() for finding in told or ())
    unknown = tuple(name for name, told in checks.items() if told is None)
    return Preflight(findings, tuple(boost or ()), unknown, after)


def refuse_noisy(checked: Preflight) -> None:
    """Refuse to measure on a machine that is not fit."""
    if not checked.is_quiet:
        raise OrtMeterError(
            f"this machine is {checked}. Accepted: one that is fit, or any without --strict"
        )


def _count_events(root: Path, cores: Collection[int]) -> Counters:
    own = sum(os.times()[:4])
    # Ticks of each core: user, nice, system, idle, waiting, two interrupts, stolen.
    line = re.compile(r"^cpu(\d{1,9})((?: \d{1,20}){8})\b", re.MULTILINE)
    found = line.findall(_read(root / "proc/stat"))
    ticks = [[*map(int, times.split())] for core, times in found if int(core) in cores]
    # User (guests are in it), nice, system, interrupts; then what the hypervisor took.
    busy = [sum(times[i] for i in (0, 1, 2, 5, 6)) for times in ticks]
    stolen = [times[7] for times in ticks]
    uptime = re.match(r"\d{1,20}\.\d\d\b", _read(root / "proc/uptime"))
    hertz = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    swapped = _numbers(root / "proc/vmstat", "pswpin", "pswpout")
    texts = _of_cores(root, cores, "thermal_throttle/core_throttle_count")
    throttled = [count for text in texts if (count := _integer(text)) is not None]
    held = [
        _numbers(file, "nr_throttled")
        for file in group_files("cpu.stat", "cpu", "cpu.stat", root=root)
    ]
    return Counters(
        at=float(uptime[0]) if uptime else None,
        own=own,
        busy=sum(busy) / hertz if busy else None,
        stolen=sum(stolen) / hertz if stolen else None,
        swapped=sum(swapped.values()) if swapped else None,
        throttled=sum(throttled) if throttled else None,
        held=max((n for counts in held for n in counts.values()), default=None),
    )


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(after - before, 0)


def _load(spent: Counters, threads: int, cores: int) -> list[str] | None:
    if spent.busy is None or not spent.at:
        return None
    others = (spent.busy - (spent.own or 0.0)) / spent.at
    spared = 0 < threads < cores
    if others < (max(_BUSY, _BUSY_SHARE * cores) if spared else _BUSY):
        return []
    used = f"{min(others, cores):.1f} of the {cores} cores of this process"
    if cores == 1:
        used = f"{min(others, 1):.0%} of the one core of this process"
    return [f"{_OTHERS} {used}: stop them, or wait"]


def _quota(spent: Counters, threads: int, cores: int, root: Path) -> list[str]:
    findings = []
    usable = min(cores, cpu_quota(root) or cores)
    # Without a number, onnxruntime counts the cores of the machine, whatever the quota.
    asked = threads or cores
    if asked > usable:
        limit = "" if usable == cores else ", the quota of this container"
        found = f"{asked} thread{'s' * (asked > 1)} on {usable:.3g} core{'s' * (usable != 1)}"
        findings.append(f"{found}{limit}: ask for --threads {max(int(usable), 1)} at most")
    if spent.held:
        findings.append(
            f"the quota stopped this container {spent.held:.0f} times: ask for fewer threads"
        )
    return findings


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the cores that the groups of this process may use, None without a limit."""
    limits = []
    for file in group_files("cpu.max", "cpu", "cpu.cfs_quota_us", root=root):
        texts = _read(file).split()
        if file.name != "cpu.max":
            texts += _read(file.with_name("cpu.cfs_period_us")).split()
        quota, period = [*map(_integer, texts[:2]), None, None][:2]
        if quota and period:
            limits.append(quota / period)
    return min(limits, default=None)


def _governor(root: Path, cores: Collection[int], boost: list[str] | None) -> list[str] | None:
    governors = set(_of_cores(root, cores, "cpufreq/scaling_governor"))
    if not governors:
        return None if boost is None else []
    other = ", ".join(sorted(governors - {"performance"}))
    told = f"the frequency governor is {other}: set it with cpupower frequency-set -g performance"
    return [told] if other else []


def _boost(root: Path) -> list[str] | None:
    """Note a boosted frequency: most machines have it, and a reference workload shows its drift."""
    folder = root / "sys/devices/system/cpu"
    switches = {"cpufreq/boost": "1", "intel_pstate/no_turbo": "0"}
    states = {name: _read(folder / name).strip() for name in switches}
    if not any(states.values()):
        return None
    return [
        f"the frequency is boosted while the CPU is cool and other cores are idle: write "
        f"{1 - int(on)} into /sys/devices/system/cpu/{name} for steady latencies"
        for name, on in switches.items()
        if states[name] == on
    ][:1]


def _heat(spent: Counters) -> list[str] | None:
    if spent.throttled is None:
        return None
    times = f"{spent.throttled:.0f} times"
    return [f"heat slowed cores down {times}: cool them, wait"] if spent.throttled else []


def _stolen(spent: Counters, cores: int) -> list[str] | None:
    if spent.stolen is None or not spent.at:
        return None
    share = spent.stolen / (spent.at * cores)
    if share <= _STOLEN_SHARE:
        return []
    lost = f"{_HYPERVISOR} {share:.0%} of the time of this virtual machine to others"
    return [f"{lost}: use a machine of your own, or measure in several processes"]


def _swap(spent: Counters, root: Path) -> list[str] | None:
    memory = _numbers(root / "proc/meminfo", "MemTotal:", "SwapTotal:", "SwapFree:")
    if len(memory) < 3:  # noqa: PLR2004 - all of them
        return None
    findings = []
    used = memory["SwapTotal:"] - memory["SwapFree:"]
    if used > _SWAP_SHARE * memory["MemTotal:"]:
        findings.append(
            f"{used / 2**20:.1f} GiB of memory are swapped out, and read from the disk when they "
            "are needed: free memory, then swapoff -a"
        )
    if spent.swapped:
        findings.append(f"{spent.swapped:.0f} pages are swapped meanwhile: free memory")
    return findings


def _of_cores(root: Path, cores: Collection[int], file: str) -> list[str]:
    """Read a file of each core, in one short line; those that are missing are left out."""
    folder = root / "sys/devices/system/cpu"
    texts = (" ".join(_read(folder / f"cpu{core}" / file).split()) for core in sorted(cores))
    return [re.sub(r"\W", "?", text[:_LONGEST]) for text in texts if text]


def _numbers(file: Path, *names: str) -> dict[str, int]:
    """Read the numbers that follow these names, one a line; others are left out."""
    pairs = re.findall(r"^(\S+)[ \t]+(\d{1,20})\b", _read(file), re.MULTILINE)
    return {name: int(number) for name, number in pairs if name in names}


def _integer(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def _read(file: Path) -> str:
    """Read a file of the system, empty when it cannot be read."""
    try:
        with file.open("rb") as stream:
            return stream.read(2**22).decode("ascii", "replace")
    except (OSError, ValueError):
        return ""
