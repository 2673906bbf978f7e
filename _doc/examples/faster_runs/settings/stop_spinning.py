"""Stop spinning when a run ends; under a CPU quota, set the threads of back-to-back runs."""

import onnxruntime

options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.force_spinning_stop", "1")
options.intra_op_num_threads = 2  # the quota, rounded down; without one, remove this line
session = onnxruntime.InferenceSession("model.onnx", options)
