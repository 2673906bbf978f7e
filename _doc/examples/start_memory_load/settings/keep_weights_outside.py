"""Write the weights to a file of their own, which a session maps instead of copying it."""

import onnx
import onnxruntime

model = onnx.load("model.onnx")
onnx.save(model, "outside.onnx", save_as_external_data=True, location="weights")
session = onnxruntime.InferenceSession("outside.onnx")
