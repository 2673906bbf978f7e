"""Run ScatterND(add), or MatMul with int8 weights, without the errors of the defaults."""

import onnxruntime as ort

options = ort.SessionOptions()
options.intra_op_num_threads = 1  # for ScatterND(add)
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # for MatMul by int8
session = ort.InferenceSession("model.onnx", options)
