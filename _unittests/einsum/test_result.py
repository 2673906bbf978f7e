import numpy as np
import pandas as pd
import pytest
from einsum_cases import assert_same, operands_of, oracle

from ortmeter.einsum import decompose_einsum
from ortmeter.errors import FeedError, MissingDependencyError

ATTENTION = "bsnh,btnh->bnts"
SHAPES = (2, 3, 4, 5), (2, 6, 4, 5)


@pytest.fixture
def plan():
    return decompose_einsum(ATTENTION, *SHAPES)


def test_the_table_has_one_line_per_step_and_the_total(plan):
    header, *lines, total = str(plan).splitlines()
    assert header.split() == ["step", "subscripts", "results", "shape", "FLOP", "bytes"]
    assert [line.split()[0] for line in lines] == ["transpose", "transpose", "matmul"]
    assert "bnth,bnhs->bnts" in lines[-1]
    assert lines[-1].split()[-2:] == ["1,440", "2,016"]
    assert total.split() == ["total", ATTENTION, "1,440", "4,896"]


def test_the_frame_has_one_row_per_step(plan):
    frame = plan.to_frame()
    assert list(frame["kind"]) == ["transpose", "transpose", "matmul"]
    assert frame["flop"].sum() == plan.flop == 2 * 2 * 4 * 6 * 3 * 5
    assert frame["bytes_moved"].sum() == plan.bytes_moved
    assert frame["shape"].iloc[-1] == (2, 4, 6, 3)
    assert isinstance(decompose_einsum("i->i", (2,)).to_frame(), pd.DataFrame)


def test_sizes_that_are_not_known_have_no_cost():
    plan = decompose_einsum(ATTENTION, ("batch", 3, 4, 5), (None, 6, 4, 5))
    assert (plan.flop, plan.bytes_moved, plan.largest_intermediate) == (None, None, None)
    assert plan.steps[-1].shape == ("batch", 4, 6, 3)
    assert str(plan).splitlines()[-1].split() == ["total", ATTENTION, "?", "?"]
    assert "batchx4x6x3" in str(plan)


def test_the_same_plan_runs_at_several_sizes():
    plan = decompose_einsum(ATTENTION)
    for shapes in (SHAPES, [(1, 7, 1, 2), (1, 1, 1, 2)], [(3, 2, 2, 2), (3, 5, 2, 2)]):
        operands = operands_of(shapes)
        assert_same(plan.run(*operands), oracle(ATTENTION, operands))


def test_every_result_has_a_name(plan):
    operands = operands_of(SHAPES)
    results = plan.results(*operands)
    assert list(results) == ["X0", "X1", *(step.output for step in plan.steps)]
    assert results["X0"] is operands[0]
    np.testing.assert_array_equal(results["Y"], plan.run(*operands))


@pytest.mark.parametrize(
    ("dtype", "expected"), [(np.int8, np.int8), (bool, bool), (np.float16, np.float16)]
)
@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,ij->", "ij,jk->"])
def test_the_result_has_the_type_of_the_operands(dtype, expected, equation):
    operands = [np.full((3, 3), 7, dtype)] * 2
    got = decompose_einsum(equation, *operands).run(*operands)
    assert got.dtype == expected
    np.testing.assert_array_equal(got, np.einsum(equation, *operands))


@pytest.mark.parametrize(
    ("shapes", "given", "message"),
    [
        (SHAPES, [SHAPES[0]], "has 2 operands, 1 were given"),
        (SHAPES, [SHAPES[0], (2, 6, 4, 4)], r"X1 has shape \(2, 6, 4, 4\), the plan was made for"),
        (SHAPES, [SHAPES[0], (2, 6, 4)], r"X1 has shape \(2, 6, 4\)"),
        ([(None, None, 4, 5)] * 2, [(1, 3, 4, 5), (2, 6, 4, 5)], "X0 has size 1 along 'b'"),
    ],
)
def test_operands_that_do_not_suit_the_plan_are_refused(shapes, given, message):
    with pytest.raises(FeedError, match=message):
        decompose_einsum(ATTENTION, *shapes).run(*operands_of(given))


def test_feeds_have_the_names_of_the_inputs(plan):
    operands = operands_of(SHAPES)
    feeds = plan.feeds(*operands)
    assert list(feeds) == list(plan.input_names) == ["X0", "X1"]
    assert feeds["X1"] is operands[1]
    with pytest.raises(FeedError, match="3 were given"):
        plan.feeds(1, 2, 3)


def test_a_notebook_shows_the_graph(plan):
    try:
        html = plan._repr_html_()
    except MissingDependencyError:
        pytest.skip("pygraphviz is not installed")
    assert "<svg" in html
    assert html.count("Transpose") >= 2
    assert "bsnh,btnh-&gt;bnts" in html
