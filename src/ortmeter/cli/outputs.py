"""Files that a command writes: none of them is another one, or a file that it reads."""

import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
from pathlib import Path

from ortmeter.errors import InvalidArgumentError, OrtMeterError

_OUTPUTS = ("html", "save", "output")
_INPUTS = ("baseline", "against_torch_program", "tls_ca", "tls_cert", "tls_key")


def check_outputs(options: Namespace) -> None:
    """Refuse an output that would replace an input or another output."""
    outputs = list(_given(options, _OUTPUTS))
    # What does not exist is not read, and the files of a model are long to list.
    inputs = list(_inputs(options)) if any(Path(text).exists() for _, text in outputs) else []
    pairs = [*combinations(outputs, 2), *((output, path) for output in outputs for path in inputs)]
    for (option, text), (what, path) in pairs:
        # The samples are read before they are replaced.
        if (option, what) != ("--save", "--baseline") and _is_same(text, path):
            raise InvalidArgumentError(
                f"{option}: got {text!r}, which is also {what} {path!r} and would replace it. "
                "Accepted: a file of its own"
            )


def _given(options: Namespace, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in names:
        if text := getattr(options, name, None):
            yield f"--{name.replace('_', '-')}", text


def _inputs(options: Namespace) -> Iterator[tuple[str, str]]:
    """List the files that may be read, with what names them."""
    yield from _given(options, _INPUTS)
    for text in (getattr(options, "runtime", None) or "").split(","):
        yield "--runtime", text.strip()  # it may be a wheel
    for text in getattr(options, "feeds", ()):
        # The name of an input, and that of a file, may have the sign.
        parts = text.split("=")
        for file in filter(None, ("=".join(parts[i:]) for i in range(len(parts)))):
            yield "--feeds", file
            with suppress(OSError, ValueError):
                yield from (("--feeds", str(inside)) for inside in Path(file).iterdir())
    for model in getattr(options, "models", ()):
        yield "the page" if options.command == "sweep" else "the model", model
        yield from (("the external data", file) for file in _external_files(model))


def _external_files(model: str) -> list[str]:
    from ortmeter.runtime.loading import external_files

    with suppress(OrtMeterError):  # the page of a sweep, or what is refused when it is read
        return list(map(str, external_files(model)))
    return []


def _is_same(path: str, other: str) -> bool:
    with suppress(OSError, ValueError):
        return Path(path).samefile(other)
    with suppress(OSError, ValueError):
        return os.path.realpath(path) == os.path.realpath(other)
    return False
