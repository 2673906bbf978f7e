"""Stand-ins shared by the tests."""

#: A budget that no machine spends, however slow its processes start.
ENOUGH_S = 1e4


class FakeClock:
    """A clock that only the candidates advance."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def __call__(self):
        return self.now

    def candidate(self, name, seconds):
        """Return a function that lasts what the iterator or number *seconds* says."""
        durations = iter(seconds) if hasattr(seconds, "__iter__") else None

        def call():
            self.calls.append(name)
            self.now += next(durations) if durations else seconds

        return call
