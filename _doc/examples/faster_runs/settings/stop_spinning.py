"""Stop spinning when a run ends; under a CPU quota, use as many threads as it has cores."""

import onnxruntime

QUOTA = 0  # CPU limit of the container, rounded down, 1 at least; 0 is a thread per core
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.force_spinning_stop", "1")
options.intra_op_num_threads = QUOTA
session = onnxruntime.InferenceSession("model.onnx", options)
