"""Start a Python process that executes no file of the folder where it happens to be.

``python -m module`` puts the current folder before the standard library, ``python script.py`` the
folder of the script, ``PYTHONPATH`` whatever it names: a ``json.py`` beside a model would run.
A child starts isolated (``-I``: no current folder, no ``PYTHON*`` variable, no ``-W`` of its
parent), takes this very package, and finds what its parent can import after everything else.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_BOOT = """\
import importlib.util, sys
package, module, count, *rest = sys.argv[1:]
paths, arguments = rest[: int(count)], rest[int(count) :]
sys.path += [path for path in paths if path not in sys.path]
spec = importlib.util.spec_from_file_location("ortmeter", package)
sys.modules["ortmeter"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["ortmeter"])
sys.argv[:] = [module, *arguments]
importlib.import_module(module).main(*arguments)
"""
_PACKAGE = Path(__file__).resolve().with_name("__init__.py")


def child_command(module: str, *arguments: str | os.PathLike[str]) -> list[str]:
    """Write the command of a child process that runs the function ``main`` of a module."""
    paths = [path for path in sys.path if Path(path).is_absolute()]
    texts = [os.fspath(argument) for argument in arguments]
    boot = [_BOOT, str(_PACKAGE), module, str(len(paths)), *paths]
    return [sys.executable, "-I", "-c", *boot, *texts]


def run_child(
    module: str,
    *arguments: str | os.PathLike[str],
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the function ``main`` of a module in a child process, keep its code and its output.

    The child has the variables of its parent, and those of *environment*.
    """
    return subprocess.run(  # noqa: S603 - our own modules
        child_command(module, *arguments),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        env={**os.environ, **(environment or {})},
        check=False,
    )


@contextmanager
def set_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, for the processes that start inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
