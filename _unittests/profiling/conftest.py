from pathlib import Path

import numpy as np
import pytest
from profile_writer import two_runs, write

from ortmeter.profiling import read_profile
from ortmeter.runtime.sessions import make_session

MODELS = {
    "loop": """<ir_version: 10, opset_import: ["": 21]>
    g (int64 M, bool C, float[n] X) => (float[n] Y) {
      A = Abs(X)
      [repeat] Y = Loop <body = b (int64 i, bool c, float[n] a) => (bool co, float[n] ao) {
        co = Identity(c)  t = Exp(a)  ao = Min(t, a) }> (M, C, A)
    }""",
    "if": """<ir_version: 10, opset_import: ["": 21]>
    g (bool C, float[n] X) => (float[n] Y) {
      Z = Abs(X)
      [choice] W = If (C) <
        then_branch = b () => (float[n] a) { t = Exp(Z)  a = Add(t, Z) },
        else_branch = e () => (float[n] a2) { a2 = Neg(Z) }>
      Y = Sin(W)
    }""",
}
X = np.ones(4, np.float32)
FEEDS = {
    "loop": {"M": np.array(3), "C": np.array(True), "X": X},
    "if": {"C": np.array(True), "X": X},
}


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """Profiles recorded by ONNX Runtime, three runs each, with the text of their models."""
    folder = tmp_path_factory.mktemp("profiles")
    files = {}
    for name, text in MODELS.items():
        session = make_session(text, provider="cpu", optimization="none", profile=folder / name)
        for _ in range(3):
            session.run(None, FEEDS[name])
        files[name] = Path(session.end_profiling())
    return files


@pytest.fixture
def small(tmp_path):
    """Profile of two runs of two nodes, written by hand."""
    return read_profile(write(tmp_path / "small.json", two_runs()))


@pytest.fixture(scope="session")
def models():
    return MODELS
