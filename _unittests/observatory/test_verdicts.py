import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ortmeter.errors import InvalidArgumentError
from ortmeter.observatory.matrix import AGAIN, ROWS
from ortmeter.observatory.verdicts import (
    claim_level,
    claimed,
    compare_cells,
)

ORDER = ["1.0", "1.1", "1.2", "1.3"]
EFFECT = np.log(1.05)


def as_times(logs, order=ORDER):
    """Name the axes of logarithms by threads, pass, set, case and candidate."""
    threads, passes, sets, cases, _ = logs.shape
    axes = [range(1, threads + 1), range(passes), range(sets), [f"case {i}" for i in range(cases)]]
    index = pd.MultiIndex.from_product(axes, names=ROWS)
    return pd.DataFrame(np.exp(logs).reshape(-1, len(order)), index=index, columns=order)


def simulated(seed, truth, *, passes=2, sets=10):
    """Draw times around *truth*, logarithms of shape (cases, candidates).

    A set drifts with its machine, each process has an effect of 3 to 5 %, with heavy tails.
    """
    rng = np.random.default_rng(seed)
    shape = (1, passes, sets, *truth.shape)
    spread = rng.uniform(0.03, 0.05, (truth.shape[0], 1)) / np.sqrt(3)
    movement = 0.1 * rng.standard_normal((1, passes, sets, 1, 1))
    return as_times(truth + movement + spread * rng.standard_t(3, shape), ORDER[: truth.shape[1]])


def paired(times, before, after, passes=(0, 1)):
    one = times[times.index.get_level_values("pass").isin(passes)]
    return np.log(one[before] / one[after]).to_numpy()


@pytest.mark.parametrize("passes", [1, 2])  # those that agree are tested together
@pytest.mark.parametrize(("shift", "side"), [(0.3, "less"), (-0.3, "greater"), (0.0, "less")])
def test_one_pair_has_the_p_value_of_student(passes, shift, side):
    times = simulated(2, np.array([[0.0, shift]]), passes=passes)
    (cell,) = compare_cells(times, ORDER[:2]).itertuples()
    logs = paired(times, "1.0", "1.1")
    null = -EFFECT if side == "less" else EFFECT
    p = stats.ttest_1samp(logs, null, alternative=side).pvalue
    assert len(logs) == 10 * passes
    assert cell.p == pytest.approx(min(2 * p, 1.0))
    assert cell.speedup == pytest.approx(np.exp(logs.mean()))
    found = stats.ttest_1samp(logs, 0).confidence_interval(0.99)  # one cell, one claim
    assert [cell.low, cell.high] == pytest.approx(np.exp([found.low, found.high]))


def test_the_least_favourable_pass_decides():
    times = simulated(2, np.array([[0.0, 0.3]]))
    second = times.index.get_level_values("pass") == 1
    times.loc[second, "1.1"] /= np.exp(0.3)  # the second pass does not show it
    (cell,) = compare_cells(times, ORDER[:2]).itertuples()
    alone = [
        2 * stats.ttest_1samp(paired(times, "1.0", "1.1", [i]), -EFFECT, alternative="less").pvalue
        for i in range(2)
    ]
    assert alone[0] < 1e-4 < alone[1]
    assert cell.p == pytest.approx(min(alone[1], 1.0))
    assert cell.verdict == "undecided"
    times.loc[second, "1.1"] /= np.exp(0.3)  # now it shows the opposite
    assert compare_cells(times, ORDER[:2])["verdict"].tolist() == ["undecided"]


def test_slower_than_one_pays_for_the_choice_and_faster_is_than_all():
    times = simulated(3, np.array([[0.4, 0.0, 0.3], [0.5, 0.4, 0.2]]), passes=1)
    cells = compare_cells(times, ORDER[:3]).xs("1.2", level="candidate")

    def p_values(case, null, side):
        one = times.xs(case, level="case")
        logs = [np.log(one[before] / one["1.2"]) for before in ORDER[:2]]
        return [stats.ttest_1samp(log, null, alternative=side).pvalue for log in logs]

    slower, faster = p_values("case 0", -EFFECT, "less"), p_values("case 1", EFFECT, "greater")
    assert cells["p"].tolist() == pytest.approx([2 * 2 * min(slower), 2 * max(faster)])
    assert cells["baseline"].tolist() == ["1.1", "1.1"]
    assert cells["verdict"].tolist() == ["slower", "faster"]
    assert cells["before"].iloc[0] == pytest.approx(
        times.xs("case 0", level="case")["1.1"].median()
    )


@pytest.mark.parametrize("seed", range(3))
def test_claims_are_those_of_benjamini_and_hochberg_with_intervals_that_agree(seed):
    truth = np.zeros((40, 4))
    truth[:12, 2:] = np.linspace(0.06, 0.5, 12)[:, None]
    truth[20:24, 3] = -0.3
    cells = compare_cells(simulated(seed, truth), ORDER)
    claimed = cells["verdict"].isin(["faster", "slower"])
    rejected = stats.false_discovery_control(cells["p"], method="bh") <= 0.01
    assert claimed.tolist() == rejected.tolist()
    assert 10 < claimed.sum() < 40
    assert claim_level(cells["p"]) == pytest.approx(0.01 * claimed.sum() / len(cells))
    outside = (cells["high"] < 1 / 1.05) | (cells["low"] > 1.05)
    assert outside[claimed].all()
    assert (cells["speedup"].between(cells["low"], cells["high"])).all()


def test_a_larger_effect_may_be_asked_for():
    times = simulated(4, np.log([[1.0, 1.35], [1.0, 2.5]]))
    cells = compare_cells(times, ORDER[:2], min_effect=0.5)
    assert cells["verdict"].tolist() == ["undecided", "slower"]
    assert compare_cells(times, ORDER[:2])["verdict"].tolist() == ["slower", "slower"]


def test_contenders_that_do_not_run_a_case_are_no_baseline():
    times = simulated(5, np.zeros((3, 4)))
    cases = times.index.get_level_values("case")
    times.loc[cases == "case 0", ["1.0", "1.1"]] = np.nan
    times.loc[cases == "case 1", "1.2"] = np.nan
    times.loc[cases == "case 1", "1.3"] *= 2
    times.loc[cases == "case 2", "1.3"] = np.nan
    cells = compare_cells(times, ORDER)
    verdicts = cells["verdict"].to_numpy().reshape(3, 3).tolist()
    assert verdicts[0] == ["absent", "", "undecided"]
    assert verdicts[1] == ["undecided", "absent", "slower"]
    assert verdicts[2] == ["undecided", "undecided", "absent"]
    assert cells.loc[(1, "case 0", "1.3"), "baseline"] == "1.2"
    first = cells.loc[(1, "case 0", "1.2")]
    assert first["baseline"] == ""
    assert first[["before", "speedup", "low", "high", "p"]].isna().all()
    assert first["after"] > 0


@pytest.mark.parametrize(("sets", "p"), [(1, 1.0), (2, 1.0), (4, 0.0)])
def test_few_processes_decide_nothing_even_without_noise(sets, p):
    logs = np.broadcast_to([[0.0, 0.0], [0.0, 1.0]], (1, 2, sets, 2, 2))
    cells = compare_cells(as_times(logs, ORDER[:2]), ORDER[:2])
    assert cells["p"].tolist() == [1.0, p]
    assert cells["verdict"].tolist() == ["undecided", "slower" if p == 0 else "undecided"]
    assert cells[["low", "high"]].isna().all(axis=None) == (sets == 1)  # two passes have four


def test_a_set_that_lacks_one_contender_is_left_out():
    times = simulated(7, np.array([[0.0, 0.5]]))
    times.loc[(1, 0, 0), "1.1"] = np.nan
    (cell,) = compare_cells(times, ORDER[:2]).itertuples()
    logs = paired(times, "1.0", "1.1")[1:]
    p = 2 * stats.ttest_1samp(logs, -EFFECT, alternative="less").pvalue
    assert (cell.p, cell.speedup) == pytest.approx((p, np.exp(logs.mean())))


def test_losses_and_gains_say_since_when():
    truth = np.log(
        [
            [1.0, 2.0, 2.0, 2.0],  # slower since 1.1
            [1.0, 2.0, 1.0, 3.0],  # since 1.3 only
            [4.0, 4.0, 4.0, 1.0],  # faster
            [4.0, 1.0, 1.0, 1.0],  # faster, but no longer the best
            [1.0, 1.0, 1.0, 1.0],
        ]
    )
    cells = compare_cells(simulated(8, truth), ORDER)
    lost = claimed(cells, "1.3", "slower")
    assert lost.index.tolist() == [(1, "case 1"), (1, "case 0")]
    assert lost["since"].tolist() == ["1.3", "1.1"]
    gained = claimed(cells, "1.3", "faster")
    assert gained.index.tolist() == [(1, "case 2")]
    assert gained["since"].tolist() == ["1.3"]
    assert claimed(cells, "1.1", "faster").index.tolist() == [(1, "case 3")]
    assert claimed(cells, "1.2", "slower")["since"].to_dict() == {(1, "case 0"): "1.1"}
    same = compare_cells(simulated(9, np.zeros((3, 4))), ORDER)
    assert claimed(same, "1.3", "slower").empty
    assert claimed(same, "1.3", "faster").empty
    with pytest.raises(InvalidArgumentError, match="release='1.0'. Accepted: 1.1"):
        claimed(cells, "1.0", "slower")


def test_the_control_is_compared_with_its_own_release():
    times = simulated(10, np.log([[1.0, 2.0], [1.0, 1.0]]))
    times["1.1" + AGAIN] = times["1.1"] * np.exp(0.01 * np.sin(np.arange(len(times))))
    pair = ["1.1", "1.1" + AGAIN]
    cells = compare_cells(times, pair)
    assert cells["verdict"].tolist() == ["undecided"] * 2
    assert cells["baseline"].tolist() == ["1.1"] * 2
    times["1.1" + AGAIN] *= 1.5
    level = claim_level(compare_cells(times, ORDER[:2])["p"])
    assert compare_cells(times, pair, level=level)["verdict"].tolist() == ["slower"] * 2


def test_each_number_of_threads_has_its_cells():
    logs = np.concatenate([simulated(seed, np.zeros((2, 2))) for seed in (1, 2)])
    times = as_times(np.log(logs).reshape(2, 2, 10, 2, 2), ORDER[:2])
    times.loc[2, "1.1"] = 3 * times.loc[2, "1.1"].to_numpy()
    cells = compare_cells(times.sample(frac=1, random_state=0), ORDER[:2]).sort_index()
    assert cells["verdict"].tolist() == ["undecided"] * 2 + ["slower"] * 2


@pytest.mark.parametrize(
    ("order", "options", "message"),
    [
        (["1.0"], {}, r"order=\['1.0'\]. Accepted: two candidates or more of 1.0, 1.1"),
        (["1.0", "1.0"], {}, "Accepted: two candidates"),
        (["1.0", "2.0"], {}, "Accepted: two candidates"),
        (["1.0", "1.1"], {"min_effect": -1}, "min_effect=-1, level=None"),
        (["1.0", "1.1"], {"level": 1.0}, "level=1.0. Accepted"),
    ],
)
def test_what_cannot_be_compared_is_refused(order, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        compare_cells(simulated(0, np.zeros((1, 2))), order, **options)
