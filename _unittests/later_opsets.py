"""Outputs of a case of the catalogue, by the reference of ONNX where ONNX Runtime is too old."""

import onnx.reference
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph

_LATER = 25  # every release that the tests take runs the opsets before


def outputs_of(case, options):
    """Return the outputs of a case by name."""
    feeds = case.feeds()
    try:
        model = case.model().SerializeToString()
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except (Fail, InvalidGraph):
        if case.opset < _LATER:
            raise
        reference = onnx.reference.ReferenceEvaluator(case.model())
        return dict(zip(reference.output_names, reference.run(None, feeds), strict=True))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))
