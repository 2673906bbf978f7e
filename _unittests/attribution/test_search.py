"""Tests of ortmeter.attribution.search, on steps whose effects are chosen."""

import itertools
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from ortmeter.attribution import search as module
from ortmeter.attribution.result import compare, severity
from ortmeter.attribution.search import find_effects

SIZE = 64


class Steps:
    """Steps that add known errors to a result; every run takes one second of a clock of its own."""

    def __init__(self, scales, seed=0):
        draws = np.random.default_rng(seed).standard_normal((len(scales), SIZE))
        self.errors = draws * np.array(scales)[:, None]
        self.results = np.vstack([np.zeros(SIZE), np.cumsum(self.errors, axis=0)])
        self.runs = []
        self.now = 0.0

    def run(self, count, is_late):
        self.runs.append(count)
        self.now += 1
        return None if is_late() else [self.results[count]]

    def search(self, budget_s=1e9, weights=None, **options):
        with mock.patch.object(module, "time", SimpleNamespace(perf_counter=lambda: self.now)):
            return find_effects(
                self.run,
                ([self.results[0]], [self.results[-1]]),
                weights or [1.0] * len(self.errors),
                compare,
                severity,
                budget_s=budget_s,
                **options,
            )

    def of(self, span):
        return self.errors[span.start : span.stop].sum(axis=0)


def pieces(spans):
    return sorted((span.start, span.stop) for span in spans)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20])
def test_each_effect_is_found_with_one_run_less_than_steps(n):
    steps = Steps(np.random.default_rng(n).uniform(1e-6, 1, n))
    spans = steps.search()
    assert pieces(spans) == [(i, i + 1) for i in range(n)]
    assert len(steps.runs) == n - 1
    assert find_effects(None, ([], []), [], compare, severity, budget_s=1) == []
    for span in spans:
        assert span.effect.mean_abs == pytest.approx(np.abs(steps.errors[span.start]).mean())


def test_the_largest_is_found_first_and_the_rest_is_accounted_for():
    scales = [1e-3] * 300
    scales[123] = 1.0
    steps = Steps(scales)
    spans = steps.search(budget_s=11)  # log2(300) = 8.2, and the cuts on both sides
    found = {span.start: span for span in spans if span.is_single}
    assert 123 in found
    borders = pieces(spans)
    assert 1 < len(borders) < 300
    assert (borders[0][0], borders[-1][1]) == (0, 300)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(borders))
    for span in spans:  # of every group, the exact effect of all that it holds
        assert span.effect.mean_abs == pytest.approx(np.abs(steps.of(span)).mean())


def test_a_long_search_ends_when_the_rest_is_negligible():
    scales = [1e-9] * 100
    scales[40] = 1.0
    steps = Steps(scales)
    spans = steps.search(budget_s=100)
    assert len(steps.runs) == 10  # a tenth of the budget
    assert 40 in {span.start for span in spans if span.is_single}
    assert len(Steps(scales).search(budget_s=1e4)) == 100  # a short one goes to its end
    steps.results[60:, 5] = np.nan
    steps.runs.clear()
    assert 59 in {span.start for span in steps.search(budget_s=100) if span.is_single}
    assert len(Steps([1.0] * 100).search(budget_s=50)) == 51 - 1


def test_weights_lead_to_the_suspect():
    scales = [1e-3] * 300
    scales[123] = 1.0
    spans = Steps(scales).search(budget_s=3, weights=scales)
    assert 123 in {span.start for span in spans if span.is_single}


def test_what_the_budget_ends():
    steps = Steps([1.0] * 8)
    (whole,) = steps.search(budget_s=0)
    assert (whole.start, whole.stop, steps.runs) == (0, 8, [])
    assert whole.effect.mean_abs == pytest.approx(np.abs(steps.results[-1]).mean())
    spans = steps.search(budget_s=3)  # the third run ends too late
    assert len(steps.runs) == 3
    assert len(spans) == 3


def test_results_that_are_kept_are_counted():
    """Two ends and one cut at least; a result between two single steps is forgotten."""
    steps = Steps([1.0] * 64)
    few = steps.search(most_kept=3)
    assert len(few) == 2
    assert len(steps.search(most_kept=20)) > len(few)
    assert len(Steps([1.0] * 4).search(most_kept=4)) >= 3
