"""The page on a Llama: its reference, its tolerance, its fresh processes, its setting."""

import copy

import numpy as np
import pytest
import torch
from page_runner import run_setting
from pandas import DataFrame

import ortmeter


@pytest.mark.slow
def test_the_reference_is_the_model_in_float64(ran):
    model = copy.deepcopy(ran["model"]).double()
    got = model(ran["tokens"]).numpy()  # with the attention of transformers
    np.testing.assert_allclose(got, ran["expected"], rtol=0, atol=1e-6)
    assert ran["expected"].dtype == np.float64
    assert ran["model"].config._attn_implementation == "eager"
    assert ran["reference"].config._attn_implementation == "sdpa"


def shift_the_rotation(ran):
    """Outputs of the model after a small change of its angles."""
    model = copy.deepcopy(ran["model"])
    model.rotary_emb.inv_freq.mul_(1 + 1e-3)
    return model(ran["tokens"])


def one_output(value):
    """The outputs of eager, but for one: it is off by this share of the largest one."""

    def run(ran):
        got = ran["functions"]["eager"]()
        got[0, 3, 5] += value * np.abs(ran["expected"]).max()
        return got

    return run


WRONG = {
    "rotation": shift_the_rotation,
    "one output": one_output(2e-5),
    "not a number": one_output(np.nan),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_other_outputs_are_out_of_tolerance(ran, wrong):
    with pytest.raises(AssertionError, match=r"default is out of tolerance"):
        ran["check"]("default", wrong(ran))


@pytest.mark.slow
def test_every_level_is_checked_and_has_its_rules(ran):
    graphs = ran["graphs"]
    assert set(ran["errors"].index) == {"eager", *graphs}
    assert ran["errors"]["error / tolerance"].between(0, 1, inclusive="right").all()
    nodes = [graphs[name].node_count for name in ran["LEVELS"] if name in graphs]
    assert nodes == sorted(nodes, reverse=True)
    assert graphs["default"].custom_count == 0
    assert "Attention" in graphs["default"].operators
    assert "Attention" not in graphs["default-EagerAttention"].operators


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eager", "default"])
def test_calls_are_measured_again_in_fresh_processes(ran, name):
    scope = {"__name__": "fresh"}
    exec(ran["source"], scope)  # noqa: S102 - the source that a process gets
    got = scope["build_call"](name, ran["SETTINGS"], ran["described"])()
    assert torch.equal(got, ran["functions"][name]())
    candidates = {name: ran["make_candidate"](name, ran["functions"][name])}
    options = {"repeat": 2, "warmup": 1, "precision": None, "budget_s": 600}
    found = ortmeter.measure(candidates, processes=2, **options)
    assert len(found[name].seconds) == 2


def test_kernels_are_summed_by_kind(page):
    rows = [("FusedMatMul", 2, 700.0), ("MatMul", 1, 300.0), ("GroupQueryAttention", 1, 200.0)]
    operators = DataFrame([*rows, ("Mul", 3, 90.0)], columns=["op", "calls", "median"])
    found = page["sum_kernels"](operators)
    assert list(found.values()) == pytest.approx([7, 1.0, 0.2, 0.09])
    assert page["sum_kernels"](operators[3:])["products (ms)"] == 0


@pytest.mark.slow
def test_the_setting_compiles_a_model(ran):
    compile_model = run_setting("compile_model", ran["graphs"]["default"].model)["compile_model"]
    ran["check"]("copied", compile_model(ran["model"])(ran["tokens"]))
