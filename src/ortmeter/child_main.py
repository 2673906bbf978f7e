"""The child's side of :mod:`ortmeter.child`: it answers questions, one line of JSON each.

A question is ``{"do": what, "arguments": {...}}``, and its answer has ``answer`` or ``error``. The
environment of another release has no other module of this package, nor what it needs: the standard
library is all that is imported before a question asks for more.
"""

import importlib
import json
import os
import runpy
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints


def serve(answer: Callable[[str, dict[str, Any]], Mapping[str, Any]]) -> None:
    """Answer until the parent closes the pipe; what libraries print is no answer."""
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    for line in questions:
        asked = json.loads(line)
        told = answer(asked["do"], asked["arguments"])
        answers.write(json.dumps(told, default=to_plain) + "\n")
        answers.flush()


def to_plain(value: Any) -> Any:
    """Return what JSON accepts: arrays are lists."""
    import msgspec

    return msgspec.to_builtins(value, str_keys=True, enc_hook=lambda array: array.tolist())


def from_plain(value: Any, kind: Any) -> Any:
    """Return a value of a type, from what JSON keeps of it."""
    import msgspec

    def array(_: type, numbers: list[Any]) -> Any:
        import numpy as np

        return np.array(numbers)

    return msgspec.convert(value, kind, str_keys=True, dec_hook=array)


def name_of(thing: Callable[..., Any]) -> str:
    """Return how the other process finds a function or a class of a module."""
    return f"{thing.__module__}:{thing.__qualname__}"


def named(name: str) -> Any:
    """Return the function or the class that has this name."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function; the errors and the warnings of this package go to the parent."""
    from ortmeter.errors import OrtMeterError

    with warnings.catch_warnings(record=True) as caught:
        try:
            function = named(name)
            kinds = get_type_hints(function) if arguments else {}
            given = {n: from_plain(value, kinds.get(n, Any)) for n, value in arguments.items()}
            told: dict[str, Any] = {"answer": function(**given)}
        except OrtMeterError as error:
            notes = getattr(error, "__notes__", [])
            told = {"error": str(error), "kind": name_of(type(error)), "notes": notes}
        finally:
            sys.stdout.flush()  # before the last words of an error
            sys.stderr.flush()
    ours = [w for w in caught if w.category.__module__.startswith("ortmeter.")]
    return {**told, "warnings": [(name_of(w.category), str(w.message)) for w in ours]}


def main(script: str = "", *arguments: str) -> None:
    """Call the functions that the parent asks for, or run a script as a program."""
    if script:
        sys.argv[:] = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
    else:
        serve(_call)


if __name__ == "__main__":  # in another environment, where a script finds this module only
    package = sys.modules["ortmeter"] = types.ModuleType("ortmeter")
    package.__path__ = [os.path.dirname(__file__)]  # noqa: PTH120 - pathlib takes longer
    main(sys.argv[1])
