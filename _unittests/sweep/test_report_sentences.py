import pytest
from sweep_samples import failure, group, outcome, sweep

from ortmeter.sweep._sentences import conclude, group_sentences, without_numbers
from ortmeter.sweep.report import sweep_report


def sentences(*outcomes):
    """Conclusion of a sweep."""
    return sweep_report(sweep(*outcomes)).conclusion.sentences


def at(ratio, size="8", run=1, **options):
    return outcome({"m": group(run, old=1.0, new=1 / ratio)}, {"size": size, **options}, run=run)


def test_the_tasks_are_counted():
    done, lost = at(2.0), failure({"size": "16"})
    assert sentences(done)[0] == "1 of 1 tasks are done."
    assert sentences(done, lost)[0] == "1 of 2 tasks are done, 1 failed."
    skipped = failure({"size": "32"}, error="")
    assert sentences(done, lost, skipped)[0] == "1 of 3 tasks are done, 1 failed, 1 missing."


def test_a_few_places_are_named():
    _, found = sentences(at(2.0, "8"), at(0.5, "16"))[:2]
    assert found == "new is faster than old: size 8 (2.00); new is slower than old: size 16 (0.50)."


def test_many_places_are_counted():
    tasks = [at(1 + n / 10, str(n)) for n in range(2, 8)]
    assert sentences(*tasks)[1] == "new is faster than old in 6 of 6 cases (1.20 to 1.70)."


def test_groups_and_pages_are_named_where_there_are_several():
    data = {"m": group(old=1.0, new=0.5), "n": group(old=1.0, new=2.0)}
    found = sentences(outcome(data), outcome(data, page="plot_other"))
    assert "plot_planted, n: new is slower than old (0.50)." in found
    assert "plot_other, m: new is faster than old (2.00)." in found


def test_verdicts_that_hold_are_counted():
    tasks = [at(2.0, size, run) for size in ("8", "16") for run in (1, 2, 3)]
    *_, held, spread = sentences(*tasks)
    assert held == "the verdict is the same in all the runs for 2 of 2 comparisons."
    assert spread.startswith("from run to run a speedup moves by 0.")
    assert spread.endswith("0 of 2 move beyond chance.")


def test_verdicts_that_change_are_named_reversals_first():
    weak = [at(ratio, "8", run) for run, ratio in enumerate((1.5, 1.0, 1.5), 1)]
    reversed_ = [at(ratio, "16", run) for run, ratio in enumerate((1.5, 1.5, 0.5), 1)]
    found = sentences(*weak, *reversed_)
    start = found.index("the verdict is the same in all the runs for 0 of 2 comparisons.")
    assert found[start + 1 : start + 3] == (
        "new over old at size 16 changes: faster in 2, slower in 1.",
        "new over old at size 8 changes: faster in 2, no difference in 1.",
    )
    assert "2 of 2 move beyond chance" in found[start + 3]


def test_many_changes_are_counted():
    tasks = [at(r, str(n), run) for n in range(6) for run, r in enumerate((1.5, 1.0), 1)]
    assert "2 others change." in sentences(*tasks)


@pytest.mark.parametrize(
    ("sentence", "kept"),
    [
        # intervals, ratios
        (
            "two: b is faster than a at batch 1 (1.19, 1.18 to 1.20) and 32 (1.10, 1.08 to 1.11).",
            "two: b is faster than a at batch 1 and 32.",
        ),
        ("a is 2.23 times faster than b (99% interval 1.96 to 2.30).", "a is … faster than b."),
        # shares, durations, thousands
        (
            "Add takes the most time, 39% of that of the kernels.",
            "Add takes the most time, … of that of the kernels.",
        ),
        (
            "it compiles in 1.71 s, which pays after 54,000 calls.",
            "it compiles in …, which pays after … calls.",
        ),
        ("7 reorders take 860 µs per run.", "7 reorders take … per run."),
        # sizes, threads and names stay
        ("with threads=2, size 1024: float16 wins.", "with threads=2, size 1024: float16 wins."),
        ("atol = 1e-05 (float32).", "atol = … (float32)."),
    ],
)
def test_numbers_are_left_out_of_sentences(sentence, kept):
    assert without_numbers(sentence) == kept


def said(*claims, cpus=("A", "A", "B", "B"), types=("1", "10", "1", "10")):
    return [
        outcome({}, {"itype": itype}, cpu=cpu, sentences=claim)
        for claim, cpu, itype in zip(claims, cpus, types, strict=True)
    ]


def test_sentences_are_gathered_by_where_they_were_said():
    table = group_sentences(
        said(
            ["a is 2.0 times faster.", "always.", "most."],
            ["a is 3.0 times faster.", "always.", "half.", "most."],
            ["b wins.", "always.", "most."],
            ["b wins.", "always.", "half.", "alone."],
        )
    )
    where = {
        key[1]: tuple(values) for key, values in zip(table.index, table.to_numpy(), strict=True)
    }
    assert where == {
        "a is … faster.": ("2 of 4", "a"),
        "b wins.": ("2 of 4", "b"),
        "half.": ("2 of 4", "float16"),
        "alone.": ("1 of 4", "float16, b"),
        "most.": ("3 of 4", "all but float16, b"),
        "always.": ("4 of 4", "everywhere"),
    }
    assert table.index[-1][1] == "always."


def test_the_conclusion_counts_the_sentences():
    tasks = said(["a.", "b."], ["a."], ["a."], ["a."])
    assert conclude(tasks, [])[-1] == (
        "different sentences that the pages concluded, numbers apart: 2, of which 1 in every task."
    )
    assert conclude(tasks[:1], []) == ("1 of 1 tasks are done.",)
