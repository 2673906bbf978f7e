"""Allocate intermediate results one by one: for batches whose sizes vary."""

import onnxruntime

options = onnxruntime.SessionOptions()
options.enable_mem_pattern = False
session = onnxruntime.InferenceSession("model.onnx", options)
