"""A bounded cache that several threads share."""

import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from ortmeter.errors import InvalidArgumentError

__all__ = ["BoundedCache"]

_Value = TypeVar("_Value")


class _Entry(Generic[_Value]):
    """A value, and whether it was used since it was added or spared."""

    __slots__ = ("used", "value")

    def __init__(self, value: _Value) -> None:
        self.value = value
        self.used = False


class BoundedCache(Generic[_Value]):
    """Values in use, each built once even when several threads ask for it together.

    Parameters
    ----------
    size : int
        Values kept. Beyond, the oldest one goes, unless it was used meanwhile: it is then spared
        once.

    Notes
    -----
    A hit is one look into a dictionary, without lock: order is not kept, a mark is set.

    Examples
    --------
    >>> cache = BoundedCache(size=2)
    >>> [cache.get(key, key.upper) for key in ("a", "b", "a", "c")]
    ['A', 'B', 'A', 'C']
    >>> list(cache)
    ['a', 'c']
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise InvalidArgumentError(f"size={size}. Accepted: an integer from 1")
        self.size = size
        self._entries: dict[Hashable, _Entry[_Value]] = {}
        self._lock = threading.Lock()
        self._building: dict[Hashable, threading.Lock] = {}

    def find(self, key: Hashable) -> _Value | None:
        """Return the value of a key, None when it is not there."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.used = True
        return entry.value

    def get(self, key: Hashable, build: Callable[[], _Value]) -> _Value:
        """Return the value of a key, built when it is not there.

        Parameters
        ----------
        key : hashable
            What the value depends on.
        build : callable without arguments
            Makes the value, which is not None. Other keys remain available meanwhile. When it
            fails nothing is kept, and the next one who asks tries again.
        """
        with self._lock:  # nothing is being moved
            found = self.find(key)
            if found is not None:
                return found
            building = self._building.setdefault(key, threading.Lock())
        try:
            with building:
                with self._lock:
                    found = self.find(key)  # another thread may have built it meanwhile
                return self._add(key, build()) if found is None else found
        finally:
            with self._lock:
                if self._building.get(key) is building:
                    del self._building[key]

    def clear(self) -> None:
        """Drop all the values."""
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Hashable]:
        with self._lock:
            return iter(tuple(self._entries))

    def _add(self, key: Hashable, value: _Value) -> _Value:
        with self._lock:
            while len(self._entries) >= self.size:
                self._drop_oldest()
            self._entries[key] = _Entry(value)
        return value

    def _drop_oldest(self) -> None:
        """Drop the first value that was not used; those before it are spared and go last."""
        for key in tuple(self._entries):
            entry = self._entries.pop(key)
            if not entry.used:
                return
            entry.used = False
            self._entries[key] = entry
        self._entries.pop(next(iter(self._entries)))
