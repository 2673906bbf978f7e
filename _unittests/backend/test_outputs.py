import pytest
import torch

from ortmeter.backend.errors import UnsupportedGraphError
from ortmeter.backend.outputs import plan_outputs

X = torch.arange(12.0).reshape(3, 4)


def planned(function, *arguments):
    """Trace a function, return the plan of its outputs."""
    plans = []

    def plan(module, _):
        plans.append(plan_outputs(module))
        return module.forward

    torch.compile(function, backend=plan)(*arguments)
    return plans[0]


def two_results(x):
    return x + 1, x * 2


def a_result_and_its_view(x):
    y = x + 1
    return y.t(), y


def views_of_a_hidden_result(x):
    y = x + 1
    return y[0], y[1:]


def views_and_a_result(x):
    return x.t(), x + 1, x[0]


def what_has_nothing_to_do(x):
    return x.contiguous(), x.float().as_strided((2,), (1,))


@pytest.mark.parametrize(
    ("function", "computed", "positions", "made"),
    [
        (two_results, ["add", "mul"], (0, 1), ()),
        (a_result_and_its_view, ["y"], (None, 0), (0,)),
        (views_of_a_hidden_result, ["y"], (None, None), (0, 1)),
        (what_has_nothing_to_do, [], (None, None), (0, 1)),
        (views_and_a_result, ["add"], (None, 0, None), (0, 2)),
    ],
)
def test_onnx_computes_results_and_torch_makes_views(function, computed, positions, made):
    plan = planned(function, X)
    assert [node.name for node in plan.computed] == computed
    assert plan.positions == positions
    assert plan.made_positions == made
    assert plan.is_plain == (made == ())


def test_outputs_are_collected_in_order():
    plan = planned(views_and_a_result, X)
    first, second, third = plan.collect([X], [X + 1])
    assert torch.equal(second, X + 1)
    assert torch.equal(first, X.t())
    assert third.data_ptr() == first.data_ptr() == X.data_ptr()


def view_of_what_is_not_contiguous(x):
    y = x.t() + 1
    return y, y.t()


def memory_shared_by_an_unknown_operator(x):
    return torch.real(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (view_of_what_is_not_contiguous, "add: an output is a view.*not contiguous"),
        (memory_shared_by_an_unknown_operator, "real: an output shares memory through it"),
    ],
)
def test_memory_shared_in_another_way_is_refused(function, message):
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message) as caught:
        planned(function, X)
    assert isinstance(caught.value.inner_exception, UnsupportedGraphError)
