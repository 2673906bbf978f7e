"""Write a model whose input has the shape of your runs: its sessions refuse other shapes."""

import onnx
from onnxruntime.tools.onnx_model_utils import make_input_shape_fixed

model = onnx.load("model.onnx")
make_input_shape_fixed(model.graph, model.graph.input[0].name, [1, 3, 144, 144])
onnx.save(model, "fixed.onnx")
