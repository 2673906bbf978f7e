"""Compile a model of torch for inference, so that ONNX Runtime runs its calls."""

import torch

from ortmeter.backend import OrtBackend


def compile_model(model):
    return torch.compile(model.eval(), backend=OrtBackend())
