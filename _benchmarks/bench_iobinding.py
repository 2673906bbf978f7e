"""Cost of a call: BoundSession.run beside what it wraps, and beside other ways to run a model.

The model is tiny, so that the call itself is what is measured. Goal: BoundSession.run takes at
most 1.05 of the public ``run_with_iobinding``.
"""

import numpy as np
from polygraphy.backend.onnxrt import OnnxrtRunner

import ortmeter

MODEL = """<ir_version: 10, opset_import: ["": 21]>
tiny (float[4] X, float[4] Y) => (float[4] Z) { Z = Add(X, Y) }"""
PUBLIC = "session.run_with_iobinding"

if __name__ == "__main__":
    session = ortmeter.make_session(MODEL, provider="cpu")
    feeds = {name: np.ones(4, np.float32) for name in "XY"}
    bound = ortmeter.BoundSession(session, feeds)
    binding = session.io_binding()
    for key, array in feeds.items():
        binding.bind_cpu_input(key, array)
    binding.bind_output("Z")
    with OnnxrtRunner(session) as runner:
        ways = {
            PUBLIC: lambda: session.run_with_iobinding(binding),
            "BoundSession.run": lambda: bound.run(),  # noqa: PLW0108 - the same lambda for all
            "session.run": lambda: session.run(None, feeds),
            "polygraphy OnnxrtRunner.infer": lambda: runner.infer(feeds, check_inputs=False),
        }
        results = ortmeter.measure(ways, repeat=300, precision=0.01)
    for name, found in results.items():
        print(f"{found}\n    {results.speedup(name, PUBLIC).interval} of the public call")
