"""Random equations, valid for NumPy, through everything that computes one."""

import hypothesis
import numpy as np
import onnx.reference
from einsum_cases import assert_same, operands_of, oracle
from hypothesis import strategies as st

from ortmeter import make_session
from ortmeter.einsum import decompose_einsum, parse_equation

LETTERS = "abcdXY"


@st.composite
def terms(draw, sizes, hidden):
    """An operand: its subscripts and its shape, with sizes of 1 that are broadcast."""
    letters = draw(st.lists(st.sampled_from(LETTERS), max_size=4))
    ones = draw(st.sets(st.sampled_from(LETTERS), max_size=1))
    subscripts = list(letters)
    shape = [1 if letter in ones else sizes[letter] for letter in letters]
    if hidden is not None and draw(st.booleans()):
        place = draw(st.integers(0, len(letters)))
        start = draw(st.integers(0, len(hidden)))
        subscripts.insert(place, "...")
        shape[place:place] = hidden[start:]
    return "".join(subscripts), tuple(shape)


@st.composite
def equations(draw):
    """An equation and the shapes of its operands."""
    largest = st.sampled_from([1, 2, 2, 3, 3, 4, 0])
    sizes = {letter: draw(largest) for letter in LETTERS}
    hidden = draw(st.one_of(st.none(), st.lists(st.integers(1, 3), max_size=2)))
    operands = draw(st.lists(terms(sizes, hidden), min_size=1, max_size=4))
    equation = draw(st.sampled_from([",", " , "])).join(subscripts for subscripts, _ in operands)
    if draw(st.integers(0, 4)):
        letters = sorted({x for x in equation if x.isalpha()})
        result = draw(st.permutations(letters))[: draw(st.integers(0, len(letters)))]
        if "..." in equation:
            result.insert(draw(st.integers(0, len(result))), "...")
        equation += "->" + "".join(result)
    return equation, [shape for _, shape in operands]


@hypothesis.settings(
    max_examples=1200,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(
    equations(), st.booleans(), st.booleans(), st.one_of(st.none(), st.randoms()), st.data()
)
def test_random_equations(case, known, contrib, shuffle, data):
    equation, shapes = case
    operands = operands_of(shapes)
    expected = oracle(equation, operands)
    given = shapes if known else [tuple(n if n < 2 else None for n in s) for s in shapes]
    order = None
    if shuffle is not None:
        inputs = parse_equation(equation, [len(shape) for shape in shapes]).inputs
        order = "".join(data.draw(st.permutations(sorted(set("".join(inputs))))))
    plan = decompose_einsum(equation, *given, order=order)
    assert_same(plan.run(*operands), expected, "steps")
    model = plan.to_onnx(contrib=contrib)
    feeds = plan.feeds(*operands)
    (got,) = make_session(model, provider="cpu").run(None, feeds)
    assert_same(got, expected, "ONNX Runtime")
    if not contrib:
        (got,) = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
        assert_same(np.asarray(got), expected, "onnx.reference")
