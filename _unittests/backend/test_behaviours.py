"""What programs do with torch.compile: each case runs on ONNX Runtime, or is left to torch."""

import contextlib
import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from ortmeter.backend import FallbackWarning, OrtBackend, UnsupportedGraphError


@torch.library.custom_op("ortmeter_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(torch.empty_like)

LINEAR = nn.Linear(4, 4)
NORMALIZATION = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def break_in_the_middle(x):
    y = torch.relu(LINEAR(x))
    torch._dynamo.graph_break()
    return y * 2 + 1 if y.sum() > 0 else y


def same_output_twice(x):
    y = x + 1
    return y, y, x


def update(x, cache):
    cache.add_(x)
    return cache * 2


def update_only(x, cache):
    cache.add_(x)


def views_of_a_result(x):
    y = x + 1
    return y.t(), y.view(-1), y[0]


def views_of_the_input(x):
    return x[1:], x.t(), x[:, None], (x + 1)[0]


def a_result_that_is_added_to(x):
    y = x + 1
    first = y[0]
    y += 2
    return y, first


def a_view_that_is_added_to(x):
    y = x + 1
    flat = y.view(-1)
    flat += 2
    return y, flat


def a_view_of_what_is_written(x):
    y = x + 1
    y[0] = 7
    return y[1:], y


@dataclass(frozen=True)
class Case:
    """A function, its calls, the number of ONNX graphs and what is left to torch, if anything."""

    name: str
    function: Callable[..., Any]
    calls: tuple[tuple[Any, ...], ...]
    graphs: int = 1
    left: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    context: Callable[..., Any] = contextlib.nullcontext


X = draw(3, 4)
CASES = [
    # control flow of python and of torch
    Case("graph break", break_in_the_middle, ((X,),), graphs=3),
    Case(
        "cond",
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, [x]),
        ((torch.ones(3),), (-torch.ones(3),)),
    ),
    Case("item", lambda x: x * x.sum().item(), ((X,),), graphs=2),
    # shapes
    Case(
        "automatic dynamic",
        lambda x: torch.softmax(LINEAR(x), 0),
        ((draw(3, 4),), (draw(5, 4),), (draw(7, 4),)),
        graphs=2,
    ),
    Case("size as an output", lambda x: (x + 1, x.shape[0]), ((X,), (draw(5, 4),)), graphs=2),
    Case("size in the result", lambda x: x * x.shape[0], ((X,), (draw(5, 4),)), graphs=2),
    Case("shape that depends on data", lambda x: x[x > 0], ((X,),)),
    Case("empty", lambda x: x * 2, ((draw(0, 5),),)),
    Case("no dimension", lambda x: x * 2, ((torch.tensor(1.5),),)),
    # arguments that are not tensors
    Case("float argument", lambda x, s: x * s, ((X, 1.5), (X, 2.5), (X, 3.5)), graphs=2),
    Case("int argument", lambda x, s: x * s, ((X, 2), (X, 3), (X, 4)), graphs=2),
    Case("None argument", lambda x, y: x + 1 if y is None else x + y, ((X, None),)),
    # outputs
    Case("constants", lambda x: (None, 3, x + 1, (x * 2, True)), ((X,),)),
    Case("same output twice", same_output_twice, ((X,),)),
    Case("constant tensor", lambda x: (x + 1, torch.arange(5) * 2), ((X,), (X,))),
    Case("views of the input", views_of_the_input, ((X,),)),
    Case("views of a result", views_of_a_result, ((X,),)),
    Case("added to", a_result_that_is_added_to, ((X,),), graphs=0, left="shares the memory"),
    Case("view added to", a_view_that_is_added_to, ((X,),), graphs=0, left="shares the memory"),
    Case("view of what is written", a_view_of_what_is_written, ((X,),)),
    Case("parts of a result", lambda x: torch.chunk(x + 1, 2, 1), ((X,),)),
    Case("views only", lambda x: torch.chunk(x, 2, 1), ((X,),), graphs=0),
    # inputs that are views
    Case(
        "views of one tensor",
        lambda q, k, v: (q @ k.transpose(-1, -2)) @ v,
        (draw(2, 5, 18).chunk(3, -1), draw(3, 4, 21).chunk(3, -1)),
        options={"dynamic": True},
    ),
    Case("overlapping views", lambda x, y: x @ y.t(), ((X[:2], X[1:]),)),
    Case(
        "strides of the inputs",
        lambda x, y: (x.reshape(-1) * x.stride(0), y.clone() + (2 if y.is_contiguous() else 3)),
        ((X.t(), X[:1].expand(3, 4)),),
    ),
    Case("written through a view", lambda x: (x + 0).t().add_(1), ((X,),)),
    # inputs written in place
    Case("update", update, ((X, draw(3, 4)),), graphs=0, left="the graph writes into"),
    Case("update only", update_only, ((X, draw(3, 4)),), graphs=0),
    # element types
    Case(
        "mixed types",
        lambda x, b, i: ((x > 0) & b, i * 2, x.double(), x.half()),
        ((draw(3), torch.tensor([True, False, True]), torch.arange(3, dtype=torch.int32)),),
    ),
    Case("float64", lambda x: x @ x.t() + 1, ((X.double(),),)),
    Case(
        "bfloat16",
        lambda x: x @ x.t(),
        ((X.bfloat16(),),),
        graphs=0,
        left=r"Could not find an implementation for MatMul[\s\S]*torch\.compiler\.disable",
    ),
    Case(
        "complex inside",
        lambda x: torch.view_as_real(torch.view_as_complex(x) * 1j),
        ((draw(3, 2),),),
    ),
    Case("complex input", lambda x: x * 2, ((X + 1j * X,),), graphs=0, left="complex64"),
    # modes
    Case("inference mode", LINEAR, ((X,),), context=torch.inference_mode),
    Case(
        "autocast",
        LINEAR,
        ((X,),),
        graphs=0,
        left="Could not find an implementation for Gemm",
        context=lambda: torch.autocast("cpu", torch.bfloat16),
    ),
    Case("training", LINEAR, ((X,),), graphs=0, left="gradient", context=torch.enable_grad),
    Case(
        "statistics of training",
        NORMALIZATION,
        ((draw(2, 3, 8, 8),) * 1,) * 2,
        graphs=0,
        left="_native_batch_norm_legit_functional",
    ),
    Case("statistics of inference", copy.deepcopy(NORMALIZATION).eval(), ((draw(2, 3, 8, 8),),)),
    # operators that ONNX does not have
    Case(
        "operator of a library",
        lambda x: twice(x) + 1,
        ((X,),),
        graphs=0,
        left=r"ortmeter_tests\.twice",
    ),
    Case("operator of torch", torch.linalg.svdvals, ((X,),), graphs=0, left=r"aten\._linalg_svd"),
]


def run(function, calls):
    """Call a function on copies of the arguments; return the results and these copies."""
    given = copy.deepcopy(calls)
    return [function(*arguments) for arguments in given], given


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_what_torch_does_is_what_we_do(case):
    backend = OrtBackend(threads=1)
    expected_function = copy.deepcopy(case.function)
    warned = pytest.warns(FallbackWarning, match=case.left) if case.left else no_warning()
    with torch.no_grad(), case.context():
        expected = run(expected_function, case.calls)
        compiled = torch.compile(case.function, backend=backend, **case.options)
        with warned:
            got = run(compiled, case.calls)
    torch.testing.assert_close(got, expected)
    assert len(backend.graphs) == case.graphs
    assert [aliases(results) for results in got[0]] == [aliases(results) for results in expected[0]]


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.name in {"operator of torch", "bfloat16", "training"}],
    ids=lambda case: case.name,
)
def test_without_fallback_it_is_an_error(case):
    compiled = torch.compile(case.function, backend=OrtBackend(fallback=False), **case.options)
    with (
        torch.no_grad(),
        case.context(),
        pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=case.left) as caught,
    ):
        compiled(*copy.deepcopy(case.calls[0]))
    assert isinstance(caught.value.inner_exception, UnsupportedGraphError)


@contextlib.contextmanager
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Guards may run slower")  # torch, of Python 3.13.0
        yield


def aliases(results):
    """Which tensors of a result share memory."""
    tensors = results if isinstance(results, tuple) else (results,)
    storages = [t.untyped_storage().data_ptr() for t in tensors if isinstance(t, torch.Tensor)]
    return [storages.index(storage) for storage in storages]


def test_random_numbers_are_those_of_torch():
    def drop(x):
        return nn.functional.dropout(x, 0.5, training=True)

    backend = OrtBackend()
    compiled = torch.compile(drop, backend=backend)
    torch.manual_seed(1)
    with torch.no_grad(), pytest.warns(FallbackWarning, match=r"Dropout.*model\.eval\(\)"):
        got = compiled(torch.ones(50))
    torch.manual_seed(1)
    assert torch.equal(got, drop(torch.ones(50)))


def test_a_marked_dimension_needs_one_graph():
    backend = OrtBackend()
    compiled = torch.compile(LINEAR, backend=backend)
    with torch.no_grad():
        for rows in (3, 5, 7):
            x = draw(rows, 4)
            if rows == 3:  # dynamo compiles again for each tensor that is marked
                torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), LINEAR(x))
    assert len(backend.graphs) == 1


@pytest.mark.slow
def test_a_model_generates_text_with_its_cache():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=50,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(tokens, **options)
    backend = OrtBackend(threads=1, fallback=False)
    model.forward = torch.compile(model.forward, backend=backend)
    assert torch.equal(model.generate(tokens, **options), expected)
    assert len(backend.graphs) >= 2


def test_gradients_flow_through_what_is_left_to_torch():
    model = nn.Linear(4, 4)
    with pytest.warns(FallbackWarning, match=r"torch\.no_grad"):
        torch.compile(model, backend=OrtBackend())(X).sum().backward()
    torch.testing.assert_close(model.weight.grad, X.sum(0).expand(4, 4))


def test_there_is_one_warning_for_the_same_reason():
    backend = OrtBackend()

    def function(x):
        y = twice(x)
        torch._dynamo.graph_break()
        return twice(y)

    with torch.no_grad(), pytest.warns(FallbackWarning) as caught:
        torch.compile(function, backend=backend)(X)
    assert [w.category for w in caught].count(FallbackWarning) == 1
    assert ["ortmeter_tests.twice" in each.reason for each in backend.fallbacks] == [True] * 2
