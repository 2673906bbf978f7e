"""Use ortmeter as somebody who installed it with one extra, or none: `make test-install EXTRA=cpu`.

Every public name is imported, and the command line runs. What needs another extra says which one.
"""

import importlib.util
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx

import ortmeter
from ortmeter.errors import MissingDependencyError
from ortmeter.runtime.models import sample_cnn


def import_public_names() -> tuple[int, set[str]]:
    """Return how many names there are, and what is said of those that need an extra."""
    packages = [package.name for package in pkgutil.iter_modules(ortmeter.__path__, "ortmeter.")]
    count, told = 0, set()
    for module in map(importlib.import_module, ["ortmeter", *packages]):
        for name in getattr(module, "__all__", ()):
            count += 1
            try:
                getattr(module, name)
            except MissingDependencyError as error:
                told.add(str(error))
    return count, told


def run(*arguments: str, needs: str = "") -> None:
    """Run the command line; without the module that it needs, it fails in one line."""
    program = Path(sys.executable).with_name("ortmeter")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    is_there = not needs or importlib.util.find_spec(needs) is not None
    told = done.stderr.strip()
    print(f"ortmeter {arguments[0]}: exit code {done.returncode} {'' if is_there else told}")
    assert done.returncode == (0 if is_there else 2), told
    if not is_there:
        assert "\n" not in told, told
        assert 'pip install "ortmeter[' in told, told


def main() -> None:
    """Check what is installed beside this Python."""
    assert Path(ortmeter.__file__).is_relative_to(sys.prefix), ortmeter.__file__
    count, told = import_public_names()
    print(f"ortmeter {ortmeter.__version__}, Python {sys.version.split()[0]}: {count} public names")
    print(*sorted(told), sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder, "model.onnx"))
        onnx.save(sample_cnn(), model)
        run("--help")
        run("env")
        run("bench", model, "--repeat", "20", "--processes", "1", needs="onnxruntime")
        run("diff", model, "--against", "unoptimized", needs="onnxruntime")
        if importlib.util.find_spec("distributed") is None:  # else it serves until interrupted
            run("scheduler", needs="distributed")


if __name__ == "__main__":
    main()
