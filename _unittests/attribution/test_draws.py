"""A model that is given what its nodes draw."""

import numpy as np
import onnx
import onnxruntime
import pytest

from ortmeter.attribution.draws import with_draws_given
from ortmeter.errors import InvalidArgumentError

X = np.float32([1, -2])


def model(kind="float", outputs="float[2] Y"):
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        g ({kind}[2] X) => ({outputs.replace("float", kind)})
        {{ [noise] R = RandomNormalLike(X)  Y = Add(X, R) }}""")


def test_the_rest_follows_from_the_draw():
    given, drawn, told = with_draws_given(model(), {"X": X})
    assert told.startswith("values are drawn by 'noise' (RandomNormalLike), so there is nothing")
    session = onnxruntime.InferenceSession(given.SerializeToString())
    (y,) = session.run(None, {"X": X, **drawn})
    assert drawn["R"].any()
    assert y.tolist() == (X + drawn["R"]).tolist()


def test_two_models_have_the_same_draw():
    _, first, _ = with_draws_given(model(), {"X": X})
    _, second, _ = with_draws_given(model("float16"), {"X": X.astype("f2")}, list(first.values()))
    assert second["R"].tolist() == first["R"].astype(np.float16).tolist()


def test_an_output_that_is_drawn_is_left_out():
    given, _, told = with_draws_given(model(outputs="float[2] Y, float[2] R"), {"X": X})
    assert [output.name for output in given.graph.output] == ["Y"]
    assert told.endswith("Output R is left out.")
    with pytest.raises(InvalidArgumentError, match=r"nothing to compare: .* drawn by 'noise'"):
        with_draws_given(model(outputs="float[2] R"), {"X": X})


def test_a_model_that_draws_nothing_is_the_same():
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[2] X) => (float[2] Y) { Y = Abs(X) }"""
    plain = onnx.parser.parse_model(text)
    assert with_draws_given(plain, {"X": X}) == (plain, {}, "")
