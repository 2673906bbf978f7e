"""Every rule on a graph that holds its pattern: what it writes, and where it must not."""

import re
from pathlib import Path

import onnx_ir as ir
import pytest
from backend_graphs import apply, operators, relative_errors
from backend_patterns import EVERY, PATTERNS

from ortmeter.backend.rules import RULES
from ortmeter.dtypes import unit_roundoff
from ortmeter.runtime.cuda_kernels import cuda_kernel
from ortmeter.runtime.placement import node_assignment
from ortmeter.runtime.sessions import make_session

# ONNX Runtime takes no bfloat16 from numpy.
FIRES = [(n, e) for n, pattern in PATTERNS.items() for e in pattern.elements if e != "bfloat16"]
SWAPS = [(n, result) for n, p in PATTERNS.items() for result in p.graph.commutative_results()]
INNER = [(n, result) for n, p in PATTERNS.items() for result in p.graph.inner_results()]
KEPT = [(name, result) for name, result in INNER if result not in PATTERNS[name].shared]
SHARED = [(name, result) for name, p in PATTERNS.items() for result in sorted(p.shared)]
# Of the standard: since when, and the opsets where CUDA has no kernel.
FIRST_OPSET = {"Attention": 23, "RMSNormalization": 23, "RotaryEmbedding": 23, "Gelu": 20}
WITHOUT_KERNEL = {
    22: {"Attention", "RMSNormalization", "RotaryEmbedding"},
    23: set(),
    24: set(),
    25: {"Attention"},
}


def test_every_rule_has_a_pattern():
    assert {pattern.rule for pattern in PATTERNS.values()} == set(RULES)


def test_the_published_table_is_about_these_rules():
    page = Path(__file__).resolve().parents[2] / "_doc" / "backend_rules.rst"
    rows = re.findall(r"^   (\w+),", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert rows
    assert set(rows) <= set(RULES)


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


@pytest.mark.parametrize(("name", "result"), SWAPS)
def test_additions_and_multiplications_match_in_both_orders(name, result):
    pattern = PATTERNS[name]
    _, count = apply(
        pattern.rule,
        pattern.graph,
        pattern.elements[0],
        provider=pattern.provider,
        swapped=[result],
    )
    assert count == 1


@pytest.mark.parametrize("element", EVERY)
@pytest.mark.parametrize("name", PATTERNS)
def test_a_rule_needs_a_kernel_for_the_element_type(name, element):
    pattern = PATTERNS[name]
    _, on_cpu = apply(pattern.rule, pattern.graph, element)
    _, on_cuda = apply(pattern.rule, pattern.graph, element, provider="cuda")
    assert (on_cpu, on_cuda) == (element in pattern.cpu, element in pattern.cuda)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_rule_needs_the_operator_that_it_writes(name):
    pattern, refusals = PATTERNS[name], []
    opset = FIRST_OPSET.get(RULES[pattern.rule].kernel, 18) - 1
    model = pattern.graph.model(pattern.elements[0], opset)
    assert RULES[pattern.rule].apply(model, pattern.provider, refusals) == 0
    assert all(f"at opset {opset}: none" in r.reason for r in refusals)
    # otherwise the pattern itself has an operator that is not there yet
    told = {"rms", "rotary", "eager"}
    assert len(refusals) == (name in told) or name not in told


@pytest.mark.parametrize(
    ("name", "opset"),
    [
        (name, opset)
        for name, pattern in PATTERNS.items()
        for present in [operators(pattern.graph.model())]
        for opset in range(22, 26)
        if all(FIRST_OPSET.get(operator, 0) <= opset for operator in present)
    ],
)
def test_nothing_is_written_without_a_kernel_on_cuda(name, opset):
    pattern = PATTERNS[name]
    element = "bfloat16" if "bfloat16" in pattern.cuda else pattern.cuda[0]
    model, refusals = pattern.graph.model(element, opset), []
    before, written = operators(model), RULES[pattern.rule].kernel
    count = RULES[pattern.rule].apply(model, "cuda", refusals)
    if written in WITHOUT_KERNEL[opset]:
        assert count == 0
        assert f"at opset {opset}: none" in refusals[0].reason
        return
    assert count == 1
    for node in model.graph:
        if node.op_type not in {*before, "Constant"}:
            version, kind = 1 if node.domain else opset, node.outputs[0].dtype
            dtype = int(kind) if kind is not None and kind.is_floating_point() else None
            assert cuda_kernel(node.op_type, node.domain, opset=version, dtype=dtype), node


def used(pairs):
    """Each result is read by another node; the first one of a pattern is an output as well."""
    firsts = dict(reversed(pairs))
    return [(*pair, "readers") for pair in pairs] + [(*pair, "outputs") for pair in firsts.items()]


@pytest.mark.parametrize(("name", "result", "how"), used(KEPT))
def test_a_rule_keeps_a_result_used_elsewhere(name, result, how):
    pattern, more = PATTERNS[name], {how: [result]}
    element = pattern.elements[0]
    model, count = apply(pattern.rule, pattern.graph, element, provider=pattern.provider, **more)
    assert count == 0
    assert operators(model) == operators(pattern.graph.model(element, **more))


@pytest.mark.parametrize(("name", "result", "how"), used(SHARED))
def test_a_rule_gives_or_leaves_the_results_that_others_read(name, result, how):
    pattern, more = PATTERNS[name], {how: [result]}
    element = pattern.elements[0]
    model, count = apply(pattern.rule, pattern.graph, element, provider=pattern.provider, **more)
    assert count == 1
    assert max(relative_errors(pattern.graph, model, element, **more)) <= 16 * unit_roundoff(
        element
    )
