"""Make weights constant that a model also lists among its inputs: they are packed only once."""

import onnx

model = onnx.load("model.onnx")
weights = {weight.name for weight in model.graph.initializer}
for given in [one for one in model.graph.input if one.name in weights]:
    model.graph.input.remove(given)
onnx.save(model, "constant.onnx")
