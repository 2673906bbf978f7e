"""Keep Add and LayerNormalization apart: the fused operator is slower in some releases."""

import onnxruntime

options = onnxruntime.SessionOptions()
config = "optimization.disable_specified_optimizers"
options.add_session_config_entry(config, "SkipLayerNormFusion")
session = onnxruntime.InferenceSession("model.onnx", options)
