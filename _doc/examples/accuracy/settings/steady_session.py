"""Run ScatterND(add), or MatMul with int8 weights, without the errors of the defaults."""

import onnxruntime
from onnxruntime import GraphOptimizationLevel

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1  # for ScatterND(add)
options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL  # for MatMul by int8
session = onnxruntime.InferenceSession("model.onnx", options)
