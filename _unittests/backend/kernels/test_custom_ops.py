"""Sessions take libraries of custom operators."""

import numpy as np
import onnx_ir as ir
import pytest
from backend_kernels import kernel_model, unary

from ortmeter.backend.kernels.compiler import compile_library
from ortmeter.backend.kernels.sources import cpu_source
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.sessions import make_session

NEGATIVE = unary("Neg")
MODEL = ir.to_proto(kernel_model(NEGATIVE))


def test_a_library_gives_operators(tmp_path, monkeypatch):
    library = compile_library(cpu_source([NEGATIVE]))
    monkeypatch.chdir(library.parent)
    for path in (library, str(library), library.name):
        session = make_session(MODEL, provider="cpu", custom_ops=[path])
        (got,) = session.run(None, {"x0": np.float32([1, 2])})
        np.testing.assert_array_equal(got, [-1, -2])


def test_a_missing_library_is_an_error(tmp_path):
    with pytest.raises(InvalidArgumentError, match="custom_ops: .*none.so' is not a file"):
        make_session(MODEL, provider="cpu", custom_ops=[tmp_path / "none.so"])


@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_what_is_not_a_library_is_an_error(content, tmp_path):
    path = tmp_path / "broken.so"
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match="ONNX Runtime does not load '.*broken.so'"):
        make_session(MODEL, provider="cpu", custom_ops=[path])


def test_a_library_without_operators_is_an_error():
    library = compile_library("int nothing;")
    with pytest.raises(InvalidArgumentError, match="does not load .*RegisterCustomOps"):
        make_session(MODEL, provider="cpu", custom_ops=[library])
