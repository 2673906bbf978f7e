"""Race candidates against two copies of the default, by sequential halving.

A wave is one fresh process, and gives each candidate one number: by how much it is faster than the
default. After each wave, the worse half leaves, those that are not the best of their axis first, so
that the others get more rounds (Karnin et al., *Almost optimal exploration in multi-armed bandits*,
2013). A race chooses, and does not prove: the winner is confirmed by other processes. The two
copies of the default are equal: what they differ by widens every interval.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec
import numpy as np

from ortmeter.evidence import LEVEL, Estimate, Speedup
from ortmeter.progress import progress_bar
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.measurement import Measurement
from ortmeter.timing.statistics import MIN_PROCESSES, exponential, student

#: Less is no win.
LEAST_GAIN = 1.03
# What gains less alone leaves: two such gains may make a win together.
_WORTH = 1.015
#: On a machine that is steady enough to say something, equal sessions differ by less.
STEADY = 1.15
#: The default, its copy, and what is confirmed.
DEFAULT, AGAIN, TUNED = "default", "default again (A/A)", "tuned"
#: Outcome of a candidate for which there was no time.
LATE = "not tried for lack of time (a larger --budget helps)"
# Candidates that halving leaves, and the degrees of freedom of the variance that they share.
_KEPT, _SHARED = 6, 10
_SIMPLER = 1.01  # a combination must bring more over one of fewer changes

#: Times candidates in one wave: their samples by round, smaller is better.
Timer: TypeAlias = Callable[[Sequence[str]], Mapping[str, Sequence[float]]]


@dataclass
class Race:
    """What the waves said so far.

    Parameters
    ----------
    timer : callable
        Times candidates, in one wave.
    axes : mapping of str to str
        Axis of each candidate: one of each is kept.
    asides : collection of str
        Candidates that cannot win: one wave times them.
    """

    timer: Timer
    axes: Mapping[str, str]
    asides: Collection[str] = ()
    default: list[float] = field(default_factory=list)
    logs: dict[str, list[float]] = field(default_factory=lambda: {AGAIN: []})
    left: dict[str, str] = field(default_factory=dict)

    @property
    def running(self) -> list[str]:
        """Candidates that did not leave."""
        return [name for name in self.axes if name not in self.left]

    def wave(self) -> None:
        """Time who is left, then let losers leave, and those for whom there was no time."""
        found = self.timer([DEFAULT, AGAIN, *self.running])
        absent = [name for name in self.running if name not in found]
        self.left |= {name: "undecided" if name in self.logs else LATE for name in absent}
        default, again = (np.log(found[name]) for name in (DEFAULT, AGAIN))
        self.logs[AGAIN].append(float(np.median(default - again)))
        for name in self.running:
            own = np.log(found[name])
            logs = [float(np.median(copy - own)) for copy in (default, again)]
            self.logs.setdefault(name, []).append(sum(logs) / 2)
        self.left |= {name: "" for name in self.running if name in self.asides}
        self.default += found[DEFAULT]
        ends = {name: pair for name in self.running if (pair := self.estimate(name).interval)}
        for name, (_, high) in ends.items():
            if high < _WORTH:
                self.left[name] = "slower" if high < 1 else "no gain"
            elif any(
                low > high and self.axes[o] == self.axes[name] for o, (low, _) in ends.items()
            ):
                self.left[name] = "slower than another of its axis"
        ranked = sorted(self.running, key=lambda name: -float(np.mean(self.logs[name])))
        first = {self.axes[name]: name for name in reversed(ranked)}.values()
        ranked.sort(key=lambda name: name not in first)
        for name in ranked[max(_KEPT, math.ceil(len(ranked) / 2)) :]:
            self.left[name] = "not among the best"

    @property
    def again(self) -> Speedup:
        """The copy of the default compared with the default."""
        return self.speedup(AGAIN)

    def speedup(self, name: str) -> Speedup:
        """Compare a candidate that was timed, or the copy of the default, with the default."""
        return Speedup(name, DEFAULT, self.estimate(name))

    def outcome(self, name: str) -> str:
        """Say what became of a candidate."""
        if left := self.left.get(name):
            return left
        found = self.estimate(name)
        faster = "faster" if found.value >= LEAST_GAIN else f"faster, below {LEAST_GAIN}"
        return faster if found.exceeds(1) else "undecided"

    def estimate(self, name: str) -> Estimate:
        """Estimate by how many times a candidate is faster.

        Candidates of few waves share their variance: the t interval is moderated (Smyth, *Linear
        models and empirical Bayes methods*, 2004).
        """
        logs = self.logs[name]
        noise = 0.0 if name == AGAIN else abs(float(np.mean(self.logs[AGAIN][: len(logs)])))
        several = [each for each in self.logs.values() if len(each) > 1]
        # The median of the variances, each over the median of what it is expected to be.
        known = [np.var(e, ddof=1) / (1 - 2 / (9 * (len(e) - 1))) ** 3 for e in several]
        how, half = f"{len(logs)} processes", None
        if known:
            freedom = _SHARED + len(logs) - 1
            squares = _SHARED * np.median(known) + len(logs) * np.var(logs)
            half = student(freedom, LEVEL) * math.sqrt(squares / freedom / len(logs)) + noise
        return exponential(float(np.mean(logs)), half, LEVEL, how)

    @property
    def is_decided(self) -> bool:
        """Whether one candidate at most is left on each axis, shown to be faster."""
        own = [self.axes[name] for name in self.running]
        faster = (self.estimate(name).exceeds(1) for name in self.running)
        return len(own) == len(set(own)) and all(faster)

    @property
    def equal_differ(self) -> bool:
        """Whether the two copies of the default are shown to differ by what would be a win."""
        return self.estimate(AGAIN).within(1 / LEAST_GAIN, LEAST_GAIN).verdict == "wrong"

    def survivors(self) -> list[str]:
        """Return the best candidate of each axis that gains enough, the best first."""
        best: dict[str, str] = {}
        for name in sorted(self.running, key=lambda name: -self.estimate(name).value):
            if self.estimate(name).value >= _WORTH:
                best.setdefault(self.axes[name], name)
        return list(best.values())

    def winner(self, sizes: Mapping[str, int]) -> str:
        """Return the best candidate that gains enough; of those about as fast, the simplest."""
        known = {name: self.estimate(name).value for name in self.running}
        most = max(known.values(), default=0.0)
        if most < LEAST_GAIN:
            return DEFAULT
        near = [name for name, value in known.items() if value * _SIMPLER >= most]
        return min(near, key=lambda name: (sizes[name], -known[name]))


def run_race(race: Race, *, goes_on: Callable[[], bool]) -> None:
    """Run waves until the race is decided, or it may not go on; Ctrl-C ends it.

    Waves that the two copies of the default show to be worth nothing end it too.
    """
    with progress_bar("waves", total=MIN_PROCESSES) as bar:
        while len(race.logs[AGAIN]) < MIN_PROCESSES or goes_on():
            race.wave()
            bar.total = max(len(race.logs[AGAIN]), MIN_PROCESSES)
            bar.update()
            if race.equal_differ or race.is_decided:
                return


@dataclass(frozen=True)
class Confirmation:
    """The winner compared with the default, in fresh processes that chose nothing.

    Parameters
    ----------
    comparison : Comparison
        The default, its copy and the winner, as ``tuned``.
    winner : str
        Its name in the race.
    """

    comparison: Comparison
    winner: str

    @property
    def again(self) -> Speedup:
        """The copy of the default compared with the default."""
        return self.comparison.speedup(DEFAULT, AGAIN)

    @property
    def speedup(self) -> Speedup:
        """The winner over the default, its interval widened by what equal sessions differ by."""
        found, noise = self.comparison.speedup(DEFAULT, TUNED), self.again.magnitude.value
        low, high = found.low and found.low / noise, found.high and noise * found.high
        wide = replace(found.estimate, low=low, high=high)
        return msgspec.structs.replace(found, estimate=wide)

    @property
    def is_steady(self) -> bool:
        """Whether equal sessions are shown to differ by less than 15%, or by less than the gain."""
        most = max(STEADY, self.speedup.ratio)
        return self.again.estimate.within(1 / most, most).verdict == "right"

    @property
    def is_win(self) -> bool:
        """Whether the winner is faster, by enough."""
        found = self.speedup
        return self.is_steady and found.ratio >= LEAST_GAIN and bool(found.exceeds(1))


def confirm(timer: Timer, winner: str, goes_on: Callable[[int], bool]) -> Confirmation:
    """Time the winner and two copies of the default again, in waves, of which there may be more."""
    found: list[Mapping[str, Sequence[float]]] = []
    names = {DEFAULT: DEFAULT, AGAIN: AGAIN, TUNED: winner}
    while len(found) < MIN_PROCESSES or goes_on(len(found)):
        found.append(timer([*names.values()]))
    rounds = min(len(wave[DEFAULT]) for wave in found)
    seconds = {n: np.array([wave[own][:rounds] for wave in found]) for n, own in names.items()}
    return Confirmation(Comparison(Measurement(*pair) for pair in seconds.items()), winner)
