"""Fusions: the graphs that the optimizers of ONNX Runtime look for, varied, and who is wrong."""
