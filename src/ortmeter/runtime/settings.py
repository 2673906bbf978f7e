"""What a session takes beyond its provider: attributes, configuration keys, options of a run.

ONNX Runtime ignores a configuration key that it does not know: a typo would look like a
measurement. The keys are read from the installed library itself.
"""

import difflib
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import onnxruntime
from ortmeter.runtime.providers import Provider

#: When threads that wait for work spin: until the run ends, for a while after it too, never.
SPINNING: Mapping[str, Mapping[str, str]] = {
    "during-run": {"session.force_spinning_stop": "1"},
    "on": {"session.intra_op.allow_spinning": "1", "session.inter_op.allow_spinning": "1"},
    "off": {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"},
}
#: What ``onnxruntime.InferenceSession(path)`` does: all cores, whose threads go on spinning.
DEFAULT: Mapping[str, Any] = {"threads": 0, "spinning": "on", "optimization": "all"}
#: The first session of a process decides for its main thread, and for good.
DENORMALS = "session.set_denormal_as_zero"

_ENUMS = {"execution_mode": "ExecutionMode", "execution_order": "ExecutionOrder"}
_SWITCHES = (
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "use_deterministic_compute",
)
# Attribute -> largest value.
_COUNTS: Mapping[str, int] = {"inter_op_num_threads": 1024, "log_severity_level": 4}
_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}

# What begins with a literal is searched fast; a name that ends so is no key of this area.
_KEYS = [
    re.compile(rb"%b\.(?<![\w.]%b\.)[a-z0-9_.]*[a-z0-9](?=\0)" % (area, area))
    for area in (b"session", b"optimization", b"ep", b"mlas")
]
# Names of the options of a run have no common form, and there are few of them.
_RUN_KEYS = (
    "disable_synchronize_execution_providers",
    "gpu_graph_id",
    "memory.enable_memory_arena_shrinkage",
)


def apply_options(options: Any, given: Mapping[str, Any]) -> None:
    """Set attributes of ``onnxruntime.SessionOptions``; texts of a command line are converted."""
    choices: dict[str, Mapping[str, Any]] = dict.fromkeys(_SWITCHES, _BOOLEANS)
    for name, kind in _ENUMS.items():
        members = getattr(onnxruntime, kind).__members__
        choices[name] = {text.removeprefix("ORT_").lower(): one for text, one in members.items()}
    for name, value in given.items():
        if name not in choices and name not in _COUNTS:
            accepted = ", ".join([*_ENUMS, *_SWITCHES, *_COUNTS])
            raise InvalidArgumentError(
                f"session option {name!r} is not known. Accepted: {accepted}"
            )
        text, known = str(value).lower(), choices.get(name, {})
        if text in known:
            setattr(options, name, known[text])
        elif name in _COUNTS and text.isdecimal() and int(text) <= _COUNTS[name]:
            setattr(options, name, int(text))
        else:
            expected = ", ".join(known) or f"an integer from 0 to {_COUNTS[name]}"
            raise InvalidArgumentError(f"session option {name}={value!r}. Accepted: {expected}")


def spinning_config(spinning: object) -> Mapping[str, str]:
    """Return the configuration of a value of ``spinning``, refuse what is none."""
    if str(spinning) not in SPINNING:
        raise InvalidArgumentError(f"spinning={spinning!r}. Accepted: {', '.join(SPINNING)}")
    return SPINNING[str(spinning)]


def checked_config(given: Mapping[str, Any]) -> dict[str, str]:
    """Refuse configuration entries that ONNX Runtime would ignore."""
    return _checked("session", given, session_keys()) if given else {}


_first_of_process: list[str] = []


def apply_config(options: Any, given: Mapping[str, Any], usual: Mapping[str, str]) -> None:
    """Add the usual configuration entries and those that are given, keys that the library knows.

    The first session of a process decides for its main thread, and for good, whether denormal
    numbers are zero: another value would be ignored.
    """
    entries = checked_config(given)
    asked = entries.get(DENORMALS, "0")
    if not _first_of_process:
        _first_of_process.append(asked)
    if DENORMALS in entries and asked != _first_of_process[0]:
        raise InvalidArgumentError(
            f"session configuration {DENORMALS}={asked} after a session with "
            f"{_first_of_process[0]}: the first session of a process decides. Accepted: one value "
            "in a process; ortmeter bench compares several, each in its own processes"
        )
    for name, value in {**usual, **entries}.items():
        options.add_session_config_entry(name, value)


def scheduling(settings: Mapping[str, Any]) -> tuple[int, str]:
    """Return the threads and the spinning of a session with these settings."""
    return settings.get("threads", 1), settings.get("spinning", "during-run")


def spins(settings: Mapping[str, Any]) -> bool:
    """Whether threads of a session with these settings go on spinning for a while after a run."""
    options = settings.get("session_options") or {}
    threads, spinning = scheduling(settings)
    config = {**spinning_config(spinning), **(settings.get("session_config") or {})}
    in_parallel = str(options.get("execution_mode")).lower() == "parallel"
    several = {
        "intra": threads != 1,
        "inter": in_parallel and str(options.get("inter_op_num_threads", 0)) != "1",
    }
    return str(config.get("session.force_spinning_stop")) != "1" and any(
        several[pool] and str(config.get(f"session.{pool}_op.allow_spinning")) != "0"
        for pool in several
    )


def run_options(given: Mapping[str, Any]) -> Any:
    """Make the options of a run from its configuration entries."""
    options = onnxruntime.RunOptions()
    # Its default: each run with a binding looks for it, and an entry that is missing costs 25 µs.
    entries = {"gpu_graph_id": "0"} | _checked("run", given, run_keys())
    for name, value in entries.items():
        options.add_run_config_entry(name, value)
    return options


def _checked(what: str, given: Mapping[str, Any], known: Iterable[str]) -> dict[str, str]:
    """Refuse a key that ONNX Runtime would ignore, and a boolean in words, which it would too."""
    keys = sorted(known)
    for name, value in given.items():
        if name not in keys:
            close = difflib.get_close_matches(name, keys, n=3, cutoff=0.8)
            area = [key for key in keys if key.startswith(name.partition(".")[0])]
            raise InvalidArgumentError(
                f"{what} configuration key {name!r} is not read by the installed ONNX Runtime, "
                f"which would ignore it. Accepted: {', '.join(close or area or keys)}"
            )
        if str(value).lower() in {"true", "false", ""}:
            raise InvalidArgumentError(
                f"{what} configuration {name}={value!r}. Accepted: 0 or 1, or the values that the "
                "documentation of ONNX Runtime gives for this key"
            )
    return {name: str(value) for name, value in given.items()}


def refuse_options_of_cpu(names: Collection[str], providers: Iterable[Provider]) -> None:
    """Refuse options of a provider that no session would read."""
    if names and all(provider.is_cpu for provider in providers):
        raise InvalidArgumentError(
            f"provider options {', '.join(names)} given for the CPU, which has none. Accepted: "
            "provider='cuda', or session_options and session_config"
        )


@functools.cache
def session_keys() -> frozenset[str]:
    """Keys of the configuration of a session that the installed ONNX Runtime has."""
    found = {key.decode() for data in libraries() for area in _KEYS for key in area.findall(data)}
    # A session reads its attributes, and ignores the keys of the same name.
    attributes = {f"session.{name}" for name in (*dir(onnxruntime.SessionOptions), "log_id")}
    return frozenset(found - attributes)


@functools.cache
def run_keys() -> frozenset[str]:
    """Keys of the configuration of a run that the installed ONNX Runtime has."""
    data = list(libraries())
    return frozenset(key for key in _RUN_KEYS if any(key.encode() + b"\0" in d for d in data))


def libraries() -> Iterator[bytes]:
    """Read the libraries of ONNX Runtime, without those of the providers, which are large."""
    for file in sorted((Path(onnxruntime.__file__).parent / "capi").iterdir()):
        kinds = {".so", ".pyd", ".dll", ".dylib"}
        if "provider" not in file.name and kinds & {f".{part}" for part in file.name.split(".")}:
            yield file.read_bytes()
