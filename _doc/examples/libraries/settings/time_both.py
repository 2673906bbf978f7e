"""Time your trees in their library and in ONNX Runtime, on rows of yours.

LightGBM compares in float64: convert its thresholds to float64, as the page does.
"""

import onnxruntime

import ortmeter


def time_both(predict, rows):
    """Compare a function of the library with ``model.onnx``; the rows have the type it takes."""
    session = onnxruntime.InferenceSession("model.onnx")
    feeds = {session.get_inputs()[0].name: rows}
    ways = {"library": lambda: predict(rows), "session": lambda: session.run(None, feeds)}
    return ortmeter.measure(ways).summary("library")
