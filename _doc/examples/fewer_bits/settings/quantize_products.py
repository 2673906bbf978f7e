"""Convert to static 8 bits: one scale per channel, Conv, Gemm and MatMul only; count decisions."""

import onnx

import ortmeter
from ortmeter.runtime.precision import convert_precision

OPTIONS = {"op_types_to_quantize": ["Conv", "ConvTranspose", "Gemm", "MatMul"]}
OPTIONS["extra_options"] = {"QDQDisableWeightAdjustForInt32Bias": True}  # avoids errors with biases


def quantize(samples, inputs):
    """Calibrate on samples, dictionaries of arrays; return whether each input keeps its class."""
    onnx.save(convert_precision("model.onnx", "QDQ channels", samples, **OPTIONS), "8.onnx")
    one, two = (ortmeter.make_session(f"{name}.onnx", provider="cpu") for name in ("model", "8"))
    return [one.run(None, x)[0].argmax() == two.run(None, x)[0].argmax() for x in inputs]
