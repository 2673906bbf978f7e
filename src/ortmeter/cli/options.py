"""Options that several commands share, and the values that they stand for."""

import math
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable
from typing import Any

from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.runtime.sessions import MAX_THREADS

EVALUATIONS = ("torch", "reference", "float64")
UNOPTIMIZED = "unoptimized"
#: Error over the largest value of an output, beyond which results are not the same.
CLOSE = 1e-3
# Argument in Python -> option of KEY=VALUE.
_PAIRS = {
    "session_options": "--session-option",
    "session_config": "--session-config",
    "provider_options": "--provider-option",
    "run_config": "--run-config",
}


def add_session(parser: ArgumentParser, *, several: bool, runs: bool = True) -> None:
    """Declare the options of a session, those that most users need first, and those of its runs."""
    more = "; several values, separated by commas, are compared" if several else ""
    parser.add_argument(
        "--threads", default="1", help=f"threads per operator, 0 lets onnxruntime choose (1){more}"
    )
    parser.add_argument(
        "--optimization",
        default="all",
        help=f"none, basic, extended, layout or all (the default){more}",
    )
    parser.add_argument(
        "--provider",
        default="auto",
        help=f"auto (the default), cpu, cuda or NAME[:index][=LIBRARY]{more}",
    )
    group = parser.add_argument_group("session", more.removeprefix("; ") or None)
    group.add_argument(
        "--spinning",
        default="during-run",
        help="when threads that wait for work spin: during-run (the default), on (after a run too, "
        "the default of onnxruntime) or off (they sleep); bench isolates candidates whose threads "
        "spin after a run",
    )
    pairs = {
        "session_options": "attribute of SessionOptions, inter_op_num_threads=2",
        "session_config": "configuration entry, session.set_denormal_as_zero=1",
        "provider_options": "option of the provider, cudnn_conv_algo_search=HEURISTIC on CUDA",
    }
    if runs:  # they change no result
        told = "configuration entry of a run, memory.enable_memory_arena_shrinkage=cpu:0"
        pairs["run_config"] = told
    for argument, what in pairs.items():
        group.add_argument(
            _PAIRS[argument],
            dest=argument,
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help=f"{what}; may be repeated",
        )


def describe_session(options: Namespace) -> str:
    """Write the settings of the sessions, those that nobody asked for too."""
    provider = str(resolve_provider("auto")) if options.provider == "auto" else options.provider
    here = [] if getattr(options, "runtime", None) else session_providers(options)
    loose = [one.place for one in here if not (one.is_cpu or one.on_cuda or one.threads)]
    told = {"provider": provider, "optimization": options.optimization, "threads": options.threads}
    told["threads"] += f" (not controlled on {', '.join(loose)})" if loose else ""
    told["spinning"] = options.spinning
    given = [f"{name}={value}" for name, value in told.items()]
    return ", ".join([*given, *(text for name in _PAIRS for text in getattr(options, name, ()))])


def session_providers(options: Namespace) -> list[Provider]:
    """Read the providers; those that are named are not tried where other environments have them."""
    is_elsewhere = getattr(options, "runtime", None) and options.provider != "auto"
    read = Provider.parse if is_elsewhere else resolve_provider
    return split("--provider", options.provider, read)


def session_axes(options: Namespace) -> tuple[dict[str, Any], str]:
    """Read the sessions to compare, as :func:`~ortmeter.bench` takes them, and in words."""
    return _settings(options, session_providers(options), split), describe_session(options)


def session_settings(options: Namespace) -> tuple[dict[str, Any], str]:
    """Read one session, as :func:`~ortmeter.runtime.sessions.make_session` takes it, and in words.

    ``run_config`` is for :class:`~ortmeter.runtime.iobinding.BoundSession`.
    """
    provider = resolve_provider(options.provider)
    return _settings(options, provider, _read_one), describe_session(options)


def _settings(options: Namespace, providers: object, read: Callable[..., Any]) -> dict[str, Any]:
    """Read the options of a session; those of ``KEY=VALUE`` that are not given are left out."""
    settings: dict[str, Any] = {
        "provider": providers,
        "optimization": read("--optimization", options.optimization),
        "threads": read("--threads", options.threads, thread_count),
        "spinning": read("--spinning", options.spinning),
    }
    for argument, option in _PAIRS.items():
        if pairs := read_pairs(option, getattr(options, argument, ()), "KEY=VALUE"):
            settings[argument] = {key: read(option, text) for key, text in pairs.items()}
    return settings


def read_pairs(
    option: str, texts: Iterable[str], form: str, convert: Any = str, *, at_last: bool = False
) -> dict[str, Any]:
    """Read texts such as ``NAME=VALUE``, each name once; the first sign, or the last, is between.

    What *convert* refuses with a ValueError is not of this form.
    """
    pairs = {}
    for text in texts:
        name, _, value = text.rpartition("=") if at_last else text.partition("=")
        try:
            if not (name and value):
                raise ValueError(text)
            converted = convert(value)
        except ValueError:
            raise InvalidArgumentError(f"{option}: got {text!r}, expected {form}") from None
        if name in pairs:
            raise InvalidArgumentError(f"{option} is given twice for {name!r}")
        pairs[name] = converted
    return pairs


def split(option: str, text: str, read: Callable[[str], Any] = str) -> list[Any]:
    """Read a list separated by commas."""
    # A comma before a folder is one of the path of a library.
    comma = r",(?![^,=]*[/\\])" if option == "--provider" else ","
    parts = [part.strip() for part in re.split(comma, text)]
    values = [_read_one(option, part, read) for part in parts if part]
    if len({*values}) < len(parts):  # nothing is measured twice, or left out, in silence
        raise InvalidArgumentError(
            f"{option}: got {text!r}, expected values separated by commas, each one once"
        )
    return values


def _read_one(option: str, text: str, read: Callable[[str], Any] = str) -> Any:
    """Read a value, and name its option if it is refused."""
    try:
        return read(text)
    except ArgumentTypeError as error:
        raise InvalidArgumentError(f"{option}: {error}") from None


def number(
    minimum: float, maximum: float = math.inf, kind: type[int] | type[float] = int
) -> Callable[[str], float]:
    """Make the type of an option that is a finite number: what it refuses, nothing else sees."""
    what = "an integer" if kind is int else "a number"
    bounds = f"from {minimum:g} to {maximum:g}" if maximum < math.inf else f">= {minimum:g}"

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if minimum <= value <= maximum and value < math.inf:
            return value
        raise ArgumentTypeError(f"got {text!r}, expected {what} {bounds}")

    return read


thread_count = number(0, MAX_THREADS)
