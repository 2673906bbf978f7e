"""Replace each Einsum of a float32 model with the fastest graph that a search finds."""

import onnx

from ortmeter.einsum import optimize_einsum

THREADS = 0  # intra_op_num_threads of your session, 0 by default
model = onnx.shape_inference.infer_shapes(onnx.load("model.onnx"))
graph, nodes = model.graph, []
values = (*graph.input, *graph.value_info, *graph.output)
shapes = {x.name: tuple(d.dim_value for d in x.type.tensor_type.shape.dim) for x in values}
shapes |= {weight.name: tuple(weight.dims) for weight in graph.initializer}
for node in graph.node:
    if node.op_type != "Einsum":
        nodes.append(node)
        continue
    operands = [shapes[name] for name in node.input]
    assert all(map(all, operands)), "a size is unknown: fix the input shapes first"
    found = optimize_einsum(node.attribute[0].s.decode(), *operands, threads=THREADS).model
    part = onnx.compose.add_prefix(found, f"{node.output[0]}/").graph
    ends = [x.name for x in (*part.input, *part.output)]
    names = dict(zip(ends, (*node.input, *node.output), strict=True))
    for step in part.node:
        step.input[:] = [names.get(name, name) for name in step.input]
        step.output[:] = [names.get(name, name) for name in step.output]
    nodes.extend(part.node)
    graph.initializer.extend(part.initializer)
del graph.node[:]
graph.node.extend(nodes)
if "com.microsoft" not in {opset.domain for opset in model.opset_import}:
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
onnx.save(model, "searched.onnx")
