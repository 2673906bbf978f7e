"""Every rule on a graph that holds its pattern: what it writes, and where it must not."""

import csv
from collections import Counter
from pathlib import Path

import onnx_ir as ir
import pytest
from backend_graphs import apply, operators, relative_errors
from backend_patterns import EVERY, PATTERNS

from ortmeter.backend.rules import RULES
from ortmeter.backend.rules.rule import OPSET
from ortmeter.dtypes import unit_roundoff
from ortmeter.runtime.cuda_kernels import cuda_kernel
from ortmeter.runtime.placement import node_assignment
from ortmeter.runtime.sessions import make_session

# ONNX Runtime takes no bfloat16 from numpy.
FIRES = [(n, e) for n, pattern in PATTERNS.items() for e in pattern.elements if e != "bfloat16"]


def test_every_rule_has_a_pattern():
    assert {pattern.rule for pattern in PATTERNS.values()} == set(RULES)


def test_the_published_table_is_about_these_rules():
    table = Path(__file__).resolve().parents[2] / "_doc" / "backend_rules.csv"
    with table.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not row["rule"].startswith("none")]
    assert {row["rule"] for row in rows} <= set(RULES)
    counts = Counter(row["verdict"] for row in rows)
    told = ", ".join(f"{counts[w] or 'none'} {w}" for w in ("faster", "slower", "undecided"))
    page = table.with_suffix(".rst").read_text(encoding="utf-8")
    assert f"the {len(rows)} pairs of a rule and a model below are: {told}." in page


@pytest.mark.parametrize(("name", "element"), FIRES)
def test_a_rule_keeps_the_results(name, element):
    pattern = PATTERNS[name]
    model, count = apply(pattern.rule, pattern.graph, element, provider=pattern.provider)
    assert count == 1
    assert tuple(op for op in operators(model) if op != "Constant") == pattern.operators
    # a few operations follow each other, the sums are short
    assert max(relative_errors(pattern.graph, model, element)) <= 16 * unit_roundoff(element)
    # the kernel exists: neither Cast nor what a function is made of
    session = make_session(ir.to_proto(model), provider="cpu", optimization="none")
    assert {node.op_type for node in node_assignment(session)} == set(pattern.operators)


@pytest.mark.parametrize(
    ("name", "swapped"),
    [
        ("rms", {"(M, epsilon)": "(epsilon, M)", "(X, R)": "(R, X)", "(G, N)": "(N, G)"}),
        ("eager", {"(D, scale)": "(scale, D)", "(S, A)": "(A, S)"}),
    ],
)
def test_additions_and_multiplications_match_in_both_orders(name, swapped):
    pattern = PATTERNS[name]
    assert apply(pattern.rule, pattern.graph.replace(swapped))[1] == 1


@pytest.mark.parametrize("element", EVERY)
@pytest.mark.parametrize("name", PATTERNS)
def test_a_rule_needs_a_kernel_for_the_element_type(name, element):
    pattern = PATTERNS[name]
    _, on_cpu = apply(pattern.rule, pattern.graph, element)
    _, on_cuda = apply(pattern.rule, pattern.graph, element, provider="cuda")
    assert (on_cpu, on_cuda) == (element in pattern.cpu, element in pattern.cuda)


@pytest.mark.parametrize("name", PATTERNS)
def test_nothing_is_written_without_a_kernel_on_cuda(name):
    pattern = PATTERNS[name]
    element = "bfloat16" if "bfloat16" in pattern.cuda else pattern.cuda[0]
    before = operators(pattern.graph.model(element))
    model, count = apply(pattern.rule, pattern.graph, element, provider="cuda")
    assert count == 1
    for node in model.graph:
        if node.op_type not in {*before, "Constant"}:
            opset, kind = 1 if node.domain else OPSET, node.outputs[0].dtype
            dtype = int(kind) if kind is not None and kind.is_floating_point() else None
            assert cuda_kernel(node.op_type, node.domain, opset=opset, dtype=dtype), node


def used(names):
    """Each result is read by another node; the first one of a pattern is an output as well."""
    pairs = [(name, result) for name in names for result in PATTERNS[name].graph.inner_results()]
    firsts = dict(reversed(pairs))
    return [(*pair, "readers") for pair in pairs] + [(*pair, "outputs") for pair in firsts.items()]


@pytest.mark.parametrize(("name", "result", "how"), used(PATTERNS))
def test_a_result_used_elsewhere_is_there(name, result, how):
    pattern, more = PATTERNS[name], {how: [result]}
    element = pattern.elements[0]
    model, count = apply(pattern.rule, pattern.graph, element, provider=pattern.provider, **more)
    assert count == (result in pattern.shared)
    if count:
        worst = max(relative_errors(pattern.graph, model, element, **more))
        assert worst <= 16 * unit_roundoff(element)
    else:
        assert operators(model) == operators(pattern.graph.model(element, **more))
