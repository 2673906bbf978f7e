"""Graphs that optimizers look for, and what varies them: all are valid, none names a bug."""

import numpy as np
import onnx
import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.observatory.fusions.drafts import patterns
from ortmeter.observatory.fusions.variations import RULES, FusionCase, fusion_cases


@pytest.mark.parametrize("pattern", patterns())
def test_a_pattern_is_valid_as_it_is(pattern):
    onnx.checker.check_model(FusionCase(pattern).model(), full_check=True)


@pytest.fixture(scope="module")
def sample():
    return list(fusion_cases(seed=3, words="gemm,div,clip"))


def test_variations_are_valid_and_their_names_make_them_again(sample):
    assert len({case.name for case in sample}) == len(sample) > 500
    assert "GemmTransposeFusion | X has the shape [3,4] | A perm=[0,1]" in {c.name for c in sample}
    for case in sample[::17]:
        onnx.checker.check_model(case.model(), full_check=True)
        again = FusionCase.parse(case.name)
        assert again.model().SerializeToString(
            deterministic=True
        ) == case.model().SerializeToString(deterministic=True)
        for name, array in case.feeds().items():
            np.testing.assert_array_equal(again.feeds()[name], array)


def test_axes_are_an_attribute_or_an_input():
    def inputs(opset):
        node = FusionCase.parse(f"LayerNormFusionL1 | opset {opset}").model().graph.node[0]
        return len(node.input), [attribute.name for attribute in node.attribute]

    assert inputs(13) == (1, ["axes", "keepdims"])
    assert inputs(18) == (2, ["keepdims"])
    clip = FusionCase.parse("FuseReluClip | opset 9").model().graph.node[-1]
    assert {a.name: a.f for a in clip.attribute} == {"min": 0.5, "max": 1.5}


def test_each_rule_changes_some_pattern():
    for rule in RULES:
        assert any(list(rule(draft)) for _, draft in patterns().values()), rule


def test_a_name_that_is_none():
    with pytest.raises(InvalidArgumentError, match="'Other' is no pattern. Accepted: Eliminate"):
        FusionCase.parse("Other")
    with pytest.raises(InvalidArgumentError, match="'f128' is no change of DivMulFusion"):
        FusionCase.parse("DivMulFusion | f128")
