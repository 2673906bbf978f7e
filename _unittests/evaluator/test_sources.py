"""Where kernels come from: what a source is not asked for, because it is wrong there."""

import numpy as np
import pytest

import ortmeter
from ortmeter import Evaluator
from ortmeter.evaluator.kernels import NodeError


@pytest.mark.parametrize("mode", ['"cubic"', '"linear", antialias = 1'])
def test_a_resize_to_one_element_is_refused_rather_than_wrong(mode):
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[1, 1, 4, 4] x, int64[4] s)
    => (float[N, C, H, W] y)
    {{ y = Resize <coordinate_transformation_mode = "pytorch_half_pixel", mode = {mode}>
    (x, , , s) }}"""
    x = np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32)
    feeds = {"x": x, "s": np.int64([1, 1, 3, 3])}
    (got,) = Evaluator(text).run(None, feeds)
    session = ortmeter.make_session(text, provider="cpu")
    np.testing.assert_allclose(got, session.run(None, feeds)[0], 1e-5)
    for sizes in ([1, 1, 1, 3], [1, 1, 3, 1]):
        with pytest.raises(NodeError, match="leaves one element"):
            Evaluator(text).run(None, feeds | {"s": np.int64(sizes)})
