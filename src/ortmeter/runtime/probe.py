"""Find out whether CUDA works, in a process of its own.

``get_available_providers`` describes the wheel and a session that asks for CUDA is created on CPU
without an error, so the only truth is a session which may not fall back. It runs in a child
process because a failed attempt writes to file descriptor 2 and a broken driver may abort.
The last line of the standard output is a JSON object: the ``reason`` why CUDA does not work, empty
when it does, and the libraries that are ``missing``.
"""

import json
import sys

from ortmeter.runtime.providers import NO_CUDA, load_cuda_libraries

EXECUTION_PROVIDER = "CUDAExecutionProvider"
MODEL = """<ir_version: 10, opset_import: ["": 21]>
probe (float[n, n] X) => (float[n, n] Y) { Y = MatMul(X, X) }"""


def run_product() -> str:
    """Return why a session does not multiply two matrices on CUDA, nothing when it does."""
    import numpy as np
    import onnx.parser
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    model = onnx.parser.parse_model(MODEL).SerializeToString()
    session = onnxruntime.InferenceSession(
        model, options, providers=[EXECUTION_PROVIDER], enable_fallback=0
    )
    (got,) = session.run(None, {"X": np.full((2, 2), 3, dtype=np.float32)})
    if session.get_providers()[0] != EXECUTION_PROVIDER:
        return f"the session runs on {session.get_providers()[0]}"
    if not (got == 18).all():  # noqa: PLR2004
        return f"a product of two matrices is wrong on CUDA: {got.tolist()}"
    return ""


def main() -> None:
    """Print the answer as the last line."""
    missing = ""
    try:
        import onnxruntime

        if EXECUTION_PROVIDER in onnxruntime.get_available_providers():
            missing = load_cuda_libraries()
            reason = run_product()
        else:
            reason = NO_CUDA
    except Exception as error:  # noqa: BLE001 - whatever goes wrong, CUDA is not usable
        reason = f"{type(error).__name__}: {error}"
    sys.stdout.write("\n" + json.dumps({"missing": missing, "reason": reason}) + "\n")
