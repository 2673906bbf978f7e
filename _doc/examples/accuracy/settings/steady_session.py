"""Run ScatterND(add) without losing additions."""

import onnxruntime as ort

options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession("model.onnx", options)
