"""Export a model of torch, and run it on ONNX Runtime.

To stay with torch on Linux with glibc, start Python so that torch keeps its memory:
MALLOC_TRIM_THRESHOLD_=1099511627776 MALLOC_MMAP_THRESHOLD_=33554432 python script.py
"""

import onnxruntime
import torch


def make_session(model, inputs):
    torch.onnx.export(model.eval(), inputs, "model.onnx", verbose=False)
    return onnxruntime.InferenceSession("model.onnx")
