"""Merge two Gemms of one input, whose weights are in the file, and the Concat that they feed."""

import numpy as np
import onnx
from onnx.numpy_helper import from_array, to_array

model = onnx.load("model.onnx")
graph, nodes = model.graph, model.graph.node
gemms = {node.output[0]: node for node in nodes if node.op_type == "Gemm"}
concats = [node for node in nodes if node.op_type == "Concat" and len(node.input) == 2]
concat = next(node for node in concats if {*node.input} <= {*gemms})  # the first one
one, two = (gemms[name] for name in concat.input)
used = [*(name for node in nodes for name in node.input), *(out.name for out in graph.output)]
assert sum(used.count(name) for name in concat.input) == 2, "an output is used elsewhere"
assert concat.attribute[0].i in (1, -1), "not side by side"
kinds = [(gemm.input[0], len(gemm.input), [*gemm.attribute]) for gemm in (one, two)]
assert kinds[0] == kinds[1], "not alike"
axes = {1: 0 if any(a.name == "transB" and a.i for a in one.attribute) else 1, 2: -1}
constants = {weight.name: to_array(weight) for weight in graph.initializer}
for rank in range(1, len(one.input)):  # weights, biases
    parts = [constants[gemm.input[rank]] for gemm in (one, two)]
    one.input[rank] = f"joined_{one.input[rank]}"
    graph.initializer.append(from_array(np.concatenate(parts, axes[rank]), one.input[rank]))
one.output[0] = concat.output[0]
nodes.remove(two)
nodes.remove(concat)
onnx.save(model, "one.onnx")
