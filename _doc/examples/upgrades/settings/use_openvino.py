"""Run a model on OpenVINO with the wheel onnxruntime-openvino; the CPU runs what is left."""

import onnxruntime

providers = ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
session = onnxruntime.InferenceSession("model.onnx", providers=providers)
assert session.get_providers()[0] == providers[0], "the wheel has no OpenVINO"
