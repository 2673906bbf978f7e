"""Keep Add and LayerNormalization apart: the fused operator is slower in some releases."""

import onnxruntime

disabled = ["SkipLayerNormFusion"]
session = onnxruntime.InferenceSession("model.onnx", disabled_optimizers=disabled)
