"""A kernel is used where it is shown to be faster."""

import numpy as np
import pytest
import torch
from backend_kernels import BOOL, F16, F32, F64, I64, expected, graph, step

from ortmeter.backend import OrtBackend
from ortmeter.backend.kernels import choice
from ortmeter.backend.kernels.choice import KERNEL, NODES, fastest, race, why_not
from ortmeter.backend.kernels.compiler import compile_library
from ortmeter.backend.kernels.expression import Expression
from ortmeter.backend.kernels.sources import cpu_source
from ortmeter.backend.levels import optimize_model, parse_level
from ortmeter.timing import Comparison, Measurement

LEVEL = "default+onnxruntime+experimental"
GATE = Expression((F32, F32), (step("Sigmoid", "x0"), step("Mul", "t0", "x1")))
MASKED = Expression(
    (BOOL, F64, F16, I64),
    (
        step("Cast", "x2", to=11, dtype=F64),
        step("Cast", "x3", to=11, dtype=F64),
        step("Where", "x0", "t0", "x1", dtype=F64),
        step("Mul", "t1", "t2", dtype=F64),
    ),
)
SHAPES = ((3, 5), (5,))
SLOW = f"{GATE.name} takes 3 µs on [3, 5], [5] with threads=2, its operators 2 µs"


@pytest.mark.parametrize(
    ("won", "rounds", "best"),
    [  # P(22 heads of 30 or more) = 0.008, P(21) = 0.021, P(7 of 7) = 0.0078, P(6 of 6) = 0.016
        (30, 30, KERNEL),
        (22, 30, KERNEL),
        (21, 30, None),
        (15, 30, None),
        (9, 30, None),
        (8, 30, NODES),
        (7, 7, KERNEL),
        (6, 6, None),
        (1, 1, None),
    ],
)
def test_luck_does_not_win(won, rounds, best):
    assert fastest(raced(won, rounds)) == best


def raced(won, rounds=30):
    """A race of which the kernel wins some rounds."""
    kernel = np.where(np.arange(rounds) < won, 1e-6, 3e-6)
    nodes = Measurement(NODES, np.full((1, rounds), 2e-6))
    return Comparison([nodes, Measurement(KERNEL, kernel[None])])


@pytest.fixture
def library(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path))
    return compile_library(cpu_source([GATE, MASKED]))


@pytest.fixture
def planted(monkeypatch):
    """Races that were asked for, and the rounds that the kernel wins in each."""
    asked, wins = [], []

    def planted_race(library, expression, shapes, threads):
        asked.append((expression, shapes, threads))
        return raced(wins[-1])

    monkeypatch.setattr(choice, "race", planted_race)
    return asked, wins


@pytest.mark.parametrize(
    ("won", "reason", "races"),
    [
        (30, "", 1),
        (0, SLOW, 1),
        (14, f"{SLOW}: it is not shown to be faster", 2),
    ],
)
def test_what_is_shown_is_kept(won, reason, races, library, planted):
    asked, wins = planted
    wins.append(won)
    for _ in range(2):
        for _ in range(2):
            assert why_not(library, GATE, SHAPES, 2) == reason
        why_not.cache_clear()  # another process
    assert len(asked) == races


def test_each_size_and_number_of_threads_has_its_race(library, planted):
    asked, wins = planted
    for won, shapes, threads in ((30, SHAPES, 1), (0, SHAPES, 2), (0, ((9, 5), (5,)), 1)):
        wins.append(won)
        assert (why_not(library, GATE, shapes, threads) == "") is (won == 30)
    assert why_not(library, GATE, SHAPES, 1) == ""
    assert [threads for *_, threads in asked] == [1, 2, 1]


def test_what_onnxruntime_cannot_run_is_no_rival(monkeypatch, tmp_path):
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path))
    lacking = Expression((F64,), (step("Mish", "x0", dtype=F64), step("Neg", "t0", dtype=F64)))
    library = compile_library(cpu_source([lacking]))
    with pytest.raises(choice.ModelError, match="Softplus"):
        race(library, lacking, ((4,),), 1)
    assert why_not(library, lacking, ((4,),), 1) == ""


@pytest.mark.parametrize(
    ("expression", "shapes"), [(GATE, SHAPES), (MASKED, ((7, 1), (7, 300), (300,), ()))]
)
def test_a_race_is_between_the_same_results(expression, shapes, library, monkeypatch):
    bound = {}

    def keep(runs, **options):
        for name, run in runs.items():
            run()
            bound[name] = run.__self__
        return raced(30)

    monkeypatch.setattr(choice, "measure", keep)
    race(library, expression, shapes, 2)
    drawn = []
    monkeypatch.setattr(
        choice, "BoundSession", lambda _, feeds: drawn.append(feeds) or bound[NODES]
    )
    race(library, expression, shapes, 2)
    wanted = expected(expression, list(drawn[0].values()))
    results = {name: one.outputs()["y0"] for name, one in bound.items()}
    assert list(results) == [NODES, KERNEL]
    for result in results.values():
        assert result.shape == np.broadcast_shapes(*shapes)
        np.testing.assert_allclose(result, wanted, rtol=1e-4)  # Sigmoid of ONNX Runtime


@pytest.mark.parametrize(
    ("wins", "rounds"), [([30, 0], [30]), ([0, 30], [30]), ([15, 80], [30, 90])]
)
def test_more_rounds_are_run_when_undecided(wins, rounds, library, monkeypatch):
    asked, wins = [], iter(wins)

    def planted_measure(runs, *, repeat, **options):
        asked.append(repeat)
        return raced(next(wins), repeat)

    monkeypatch.setattr(choice, "measure", planted_measure)
    assert fastest(race(library, GATE, SHAPES, 1)) is not None
    assert asked == rounds


def test_a_slow_kernel_is_left_out_and_told(monkeypatch):
    monkeypatch.setattr(
        "ortmeter.backend.kernels.chains.why_not",
        lambda library, expression, *_: "too slow" if "Tanh" in expression.name else "",
    )
    backend = OrtBackend(LEVEL, fallback=False)

    def function(x, u):
        return torch.softmax(torch.tanh(x) * u, -1).exp().sigmoid()

    x, u = torch.randn(4, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    with torch.no_grad():
        got = torch.compile(function, backend=backend)(x, u)
    torch.testing.assert_close(got, function(x, u))
    (done,) = backend.graphs
    assert done.fusions["ElementWise"] == 1
    assert [refusal.reason for refusal in done.refusals if refusal.rule == "ElementWise"] == [
        "too slow"
    ]
    assert "Tanh" in done.operators


def test_without_any_fast_kernel_no_library_is_loaded(monkeypatch):
    monkeypatch.setattr("ortmeter.backend.kernels.chains.why_not", lambda *_: "too slow")
    model = graph("g (float[2, 8] X) => (float[2, 8] Y) { A = Exp(X)  Y = Neg(A) }")
    done = optimize_model(model, parse_level(LEVEL))
    assert (done.fusions, done.kernels.library, done.kernels.reason) == ({}, None, "")
    assert [(r.rule, r.result, r.reason) for r in done.refusals] == [
        ("ElementWise", "Y", "too slow")
    ]
    assert [node.op_type for node in model.graph] == ["Exp", "Neg"]


def test_sizes_are_those_of_the_first_call(tried):
    def function(x, u):
        h = torch.cat([x, u])
        return torch.tanh(h * 2) * u[0], (x.reshape(-1) * 2).exp()

    x, u = torch.randn(6, 8), torch.randn(4, 8)
    for tensor in (x, u):
        torch._dynamo.mark_dynamic(tensor, 0)
    with torch.no_grad():
        torch.compile(function, backend=OrtBackend(LEVEL, fallback=False, threads=2))(x, u)
    assert sorted(shapes for _, shapes, _ in tried) == [((10, 8), (8,)), ((48,),)]
    assert {threads for *_, threads in tried} == {2}


@pytest.mark.parametrize("shape", ["n, 8", "0, 8"])
def test_a_kernel_is_used_untried_where_a_size_is_unknown_or_zero(shape, tried):
    model = graph(f"g (float[{shape}] X) => (float[{shape}] Y) {{ A = Exp(X)  Y = Neg(A) }}")
    assert optimize_model(model, parse_level(LEVEL)).fusions == {"ElementWise": 1}
    assert tried == []


def test_a_size_is_found_by_its_name(tried):
    model = graph("g (float[n, 8] X) => (float[n, 8] Y) { A = Exp(X)  Y = Neg(A) }")
    optimize_model(model, parse_level(LEVEL), shapes={"X": (5, 8)}, threads=3)
    assert tried == [("Exp_Neg", ((5, 8),), 3)]
