"""Decode a token on a CPU, with one buffer as past and present of each GroupQueryAttention.

Do not use CUDA, where the logits of this operator were wrong.
"""

import numpy as np
from onnxruntime import InferenceSession, OrtValue

session = InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
binding = session.io_binding()
for node in session.get_inputs():
    if node.name.startswith("past"):
        shape = [1, node.shape[1], 8448, node.shape[3]]  # tokens of the longest text and its prompt
        cache = OrtValue.ortvalue_from_shape_and_type(shape, np.float32)
        present = node.name.replace("past", "present").replace("_key_values", "")
        binding.bind_ortvalue_input(node.name, cache)
        binding.bind_ortvalue_output(present, cache)
for name, value in {"ids": 1, "place": 0}.items():  # at each run: the token and its position
    binding.bind_cpu_input(name, np.array([[value]]))
binding.bind_output("logits")
session.run_with_iobinding(binding)
logits = binding.get_outputs()[-1].numpy()
