"""ONNX Runtime: providers, sessions, bound inputs, models and their feeds, the machine."""
