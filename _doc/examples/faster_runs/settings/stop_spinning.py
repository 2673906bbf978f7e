"""Stop spinning when a run ends: other sessions and processes find free cores."""

import onnxruntime

options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.force_spinning_stop", "1")
session = onnxruntime.InferenceSession("model.onnx", options)
