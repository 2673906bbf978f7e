import threading
import time

import pytest

from ortmeter.einsum._cache import BoundedCache


def test_nothing_is_kept_of_a_hit_nor_of_a_failure():
    cache = BoundedCache(size=4)

    def fail():
        raise OSError("no")

    for key in range(1000):
        cache.get(key, lambda key=key: key + 1)
        assert cache.get(key, fail) == key + 1
        with pytest.raises(OSError, match="no"):
            cache.get(-1, fail)
    assert len(cache) == 4
    assert cache._building == {}


def test_threads_that_ask_together_share_one_value_and_leave_no_lock():
    cache, built = BoundedCache(size=8), []

    def build(key):
        built.append(key)
        time.sleep(0.01)
        return [key]

    got = []

    def ask():
        got.append([cache.get(key, lambda key=key: build(key)) for key in range(8)])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(built) == list(range(8))
    assert all(a is b for values in got for a, b in zip(values, got[0], strict=True))
    assert cache._building == {}


def test_the_other_thread_builds_when_the_first_one_fails():
    cache, entered, go = BoundedCache(size=2), threading.Event(), threading.Event()
    failures = []

    def fail():
        entered.set()
        go.wait(5)
        raise OSError("no")

    def first():
        try:
            cache.get("a", fail)
        except OSError as error:
            failures.append(error)

    got = []
    threads = [
        threading.Thread(target=first),
        threading.Thread(target=lambda: got.append(cache.get("a", lambda: "built"))),
    ]
    threads[0].start()
    entered.wait(5)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join()
    assert (len(failures), got) == (1, ["built"])
    assert cache._building == {}
