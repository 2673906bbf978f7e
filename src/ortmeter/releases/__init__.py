"""Other releases of ONNX Runtime: their environments, their processes, what is compared."""
