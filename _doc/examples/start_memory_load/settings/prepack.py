"""Save a model with its prepacked weights, then open that file in each session or process."""

import onnxruntime

options = onnxruntime.SessionOptions()
options.optimized_model_filepath = "packed.onnx"
prefix = "session.optimized_model_external_initializers"
options.add_session_config_entry(f"{prefix}_file_name", "packed.data")
options.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(2**20))
options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
onnxruntime.InferenceSession("model.onnx", options)  # save once

options = onnxruntime.SessionOptions()  # in each process: the file is optimized already
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession("packed.onnx", options)
