"""Stand-ins shared by the tests, and what a CPU lacks."""

from unittest import mock

import pytest

from ortmeter.runtime.precision import cpu_instructions

#: Without VNNI, ONNX Runtime adds two products of uint8 and int8 in 16 bits, which overflow.
OVERFLOWS = cpu_instructions()["VNNI, products of 8 bits"] is False
needs_vnni = pytest.mark.skipif(OVERFLOWS, reason="no VNNI: products of 8 bits overflow")

#: A budget that no machine spends, however slow its processes start.
ENOUGH_S = 1e4


class FakeClock:
    """A clock that only the candidates advance."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def __call__(self):
        return self.now

    def time(self, function, *arguments, **options):
        """Call a function that measures with this clock."""
        with mock.patch("time.perf_counter", self):
            return function(*arguments, **options)

    def candidate(self, name, seconds):
        """Return a function that lasts what the iterator or number *seconds* says."""
        durations = iter(seconds) if hasattr(seconds, "__iter__") else None

        def call():
            self.calls.append(name)
            self.now += next(durations) if durations else seconds

        return call


class Caches:
    """Functions that pay for the caches that another one emptied, on a clock of their own."""

    def __init__(self, *costs):
        self.clock, self.costs = FakeClock(), costs
        self.last, self.since = None, 0

    def candidate(self, name, seconds):
        """Return a function that lasts so long, more at first after a call of another one."""

        def call():
            self.since = self.since + 1 if self.last == name else 0
            self.last = name
            paid = self.costs[self.since] if self.since < len(self.costs) else 0
            self.clock.now += seconds * (1 + paid)

        return call
