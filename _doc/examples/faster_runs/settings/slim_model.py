"""Rewrite a model with onnxslim, and keep the result if it has at most half of the nodes."""

import onnx
import onnxslim

slim = onnxslim.slim("model.onnx")
if 2 * len(slim.graph.node) <= len(onnx.load("model.onnx").graph.node):
    onnx.save(slim, "slim.onnx")
