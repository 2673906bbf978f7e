"""When values are released."""

import weakref

import numpy as np
import pytest
import torch

from ortmeter.errors import ModelError
from ortmeter.evaluator import Evaluator

LENGTH = 12
CHAIN = "\n".join(f"[n{i}] r{i + 1} = Neg(r{i})" for i in range(LENGTH))
TEXT = f"""<ir_version: 10, opset_import: ["": 18]>
g (float[n] r0) => (float[n] r{LENGTH}) {{ {CHAIN} }}"""


class Alive:
    """A kernel that follows its results: how many exist at each call."""

    def __init__(self, fails_at=None):
        self.references = []
        self.counts = []
        self.fails_at = fails_at

    def count(self):
        return sum(reference() is not None for reference in self.references)

    def __call__(self, x):
        self.counts.append(self.count())
        if len(self.counts) == self.fails_at:
            raise RuntimeError("planted")
        result = -x
        self.references.append(weakref.ref(result))
        return result


def feeds(kind):
    x = np.ones(1000, np.float32)
    return {"r0": torch.from_numpy(x) if kind == "torch" else x}


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_result_is_released_after_its_last_use(kind):
    alive = Alive()
    sources = ("torch",) if kind == "torch" else ("reference",)
    got = Evaluator(TEXT, {"Neg": alive}, sources).run(None, feeds(kind))
    assert max(alive.counts) == 1  # its input
    assert alive.count() == 1  # the output
    del got
    assert alive.count() == 0


def test_a_result_asked_for_is_kept_and_no_other():
    alive = Alive()
    got = Evaluator(TEXT, {"Neg": alive}, ("torch",)).run(["r3", "r5"], feeds("torch"))
    assert len(alive.counts) == 5
    assert alive.count() == 2
    del got


def test_an_input_is_released_after_its_last_use():
    class Consumed(dict):  # the evaluation is the only owner of what it takes
        def __getitem__(self, name):
            return self.pop(name)

    given = Consumed(feeds("torch"))
    reference = weakref.ref(given.get("r0"))
    gone = []
    evaluator = Evaluator(
        TEXT, sources=("torch",), callback=lambda *_: gone.append(reference() is None)
    )
    evaluator.run(None, given)
    assert gone == [False] + [True] * (LENGTH - 1)


@pytest.mark.parametrize("fails_at", [1, 5, LENGTH])
def test_nothing_is_alive_after_an_error(fails_at):
    alive = Alive(fails_at)
    evaluator = Evaluator(TEXT, {"Neg": alive}, ("torch",))
    with pytest.raises(ModelError, match=f"callable kernel of node 'n{fails_at - 1}'.*planted"):
        evaluator.run(None, feeds("torch"))
    assert alive.count() == 0
    alive.fails_at = None
    evaluator.run(None, feeds("torch"))


def test_the_error_itself_holds_the_inputs_of_the_kernel_at_most():
    alive = Alive(8)
    with pytest.raises(ModelError) as caught:
        Evaluator(TEXT, {"Neg": alive}, ("torch",)).run(["r2", "r4", "r9"], feeds("torch"))
    assert alive.counts[-1] == 3  # r2, r4 and r7, the input of the kernel that fails
    assert alive.count() <= 1
    assert "planted" in str(caught.value)


def test_values_of_a_body_are_released():
    text = """<ir_version: 10, opset_import: ["": 18]>
    g (float[n] X, int64 N) => (float[n] Y) { Y = Loop(N, , X)
    <body = b (int64 i, bool c, float[n] x) => (bool d, float[n] z)
    { d = Identity(c) y = Neg(x) z = Neg(y) }> }"""
    alive = Alive()
    x = np.ones(10, np.float32)
    got = Evaluator(text, {"Neg": alive}, ("torch",)).run(None, {"X": x, "N": np.array(6)})
    assert len(alive.counts) == 12
    assert max(alive.counts) <= 2
    np.testing.assert_array_equal(got[0], x)


def test_a_released_slot_is_not_a_released_weight():
    text = TEXT.replace("g (float[n] r0)", "g (float[n] x)").replace(
        f"(float[n] r{LENGTH}) {{", f"(float[n] r{LENGTH}) <float[2] r0 = {{1, 2}}> {{"
    )
    evaluator = Evaluator(text, sources=("torch",))
    for _ in range(2):
        np.testing.assert_array_equal(evaluator.run(None, {"x": np.float32([0])})[0], [1, 2])
