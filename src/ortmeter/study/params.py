"""Declaration of one parameter: from the text of a command line to a value, and back.

Every value takes the same road. A default is written as text, then read as if it came from the
command line: what is refused there is refused everywhere, and every value has a text to display.
"""

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ortmeter.errors import InvalidArgumentError

_BOOLS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(
    ("false", "0", "no", "off"), False
)
_SCALARS = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
_SEQUENCES = {int: "integers", float: "numbers", str: "texts"}


@dataclass(frozen=True)
class Param:
    """Declare a parameter of a page.

    Parameters
    ----------
    default : bool, int, float, str, None, or list or tuple of int, float or str
        Default value, or the name of a choice. Its type is the type of the parameter: an int stays
        an int, a sequence becomes a tuple, and ``None`` alone is an optional text. With a default
        of ``None``, the command line also accepts *none*.
    fast : same as default, optional
        Default if the environment variable ``ORTMETER_FAST`` is 1. If one of `default` and `fast`
        is ``None``, the other one gives the type.
    full : same as default, optional
        Default if the parameter ``record`` is true: a record may take longer than a build.
    choices : collection or mapping of names to values, optional
        Accepted values, given by name or by value. The name is displayed, the page gets the value.
    sequence : int, float or str, optional
        Type of the elements of a sequence, written ``256,512``. With `choices`, any other text is
        read as a sequence.
    help : str
        Text for the command line and for the table in a notebook.
    env : str, optional
        Environment variable that replaces the default when it is set and not empty.
    minimum : float, optional
        Smallest accepted number; choices are not checked. The default is 1 for integers in a
        sequence, which are sizes, and none for a single number. ``-math.inf`` means none.
    pattern : str, optional
        Regular expression of a text, or of each text of a sequence.

    Examples
    --------
    >>> from ortmeter.study.args import get_parsed_args
    >>> sizes = Param("small", choices={"small": (256, 512), "large": (4096,)}, sequence=int)
    >>> get_parsed_args("plot_x", args=[], config=sizes).config
    (256, 512)
    >>> get_parsed_args("plot_x", args=["--config", "8,16"], config=sizes).config
    (8, 16)
    """

    default: Any
    fast: Any = ...
    full: Any = ...
    choices: Collection[Any] | None = None
    sequence: type[int] | type[float] | type[str] | None = None
    help: str = ""
    env: str | None = None
    minimum: float | None = None
    pattern: str | None = None


@dataclass(frozen=True)
class Setting:
    """Value of a parameter and the text that displays it."""

    value: Any
    label: str


class Declaration:
    """A named parameter: it reads its text, and its defaults have been read.

    *declared* is a default, or a `Param`.
    """

    def __init__(self, name: str, declared: Any) -> None:
        param = declared if isinstance(declared, Param) else Param(declared)
        self.name, self.param, self.choices = name, param, _named(param)
        defaults = [d for d in (param.default, param.fast, param.full) if d is not ...]
        examples = list(self.choices.values()) if self.choices else defaults
        is_many = any(isinstance(v, (list, tuple)) for v in examples)
        self.kind = kind = param.sequence or _kind_of(examples, closed=bool(self.choices))
        self.many = param.sequence is not None or is_many
        self.optional = any(v is None for v in (*defaults, *examples))
        self.closed = bool(self.choices) and param.sequence is None
        if kind not in _SCALARS or (self.many and kind is bool):
            raise InvalidArgumentError(
                f"got a sequence of {kind.__name__}, expected int, float or str"
            )
        if param.minimum is not None and kind not in (int, float):
            raise InvalidArgumentError(f"got minimum={param.minimum} for type {kind.__name__}")
        if param.pattern is not None and kind is not str:
            raise InvalidArgumentError(f"got pattern={param.pattern!r} for type {kind.__name__}")
        least = 1 if self.many and kind is int else -math.inf
        self.minimum = least if param.minimum is None else param.minimum
        self.default = self._read_default(param.default, "default")
        self.fast = self.full = self.default
        if param.fast is not ...:
            self.fast = self._read_default(param.fast, "fast default")
        if param.full is not ...:
            self.full = self._read_default(param.full, "full default")

    def _read_default(self, default: Any, origin: str) -> Setting:
        setting = self.read(as_text(default), origin)
        if isinstance(default, (list, tuple)) and setting.value != tuple(default):
            raise InvalidArgumentError(f"{origin}: {default!r} cannot be written on a command line")
        return setting

    def read(self, text: str, origin: str) -> Setting:
        """Read *text*; *origin* says in the error where it comes from."""
        if text in self.choices:
            return Setting(self.choices[text], text)
        try:
            value = self._parse(text)
            for label, choice in self.choices.items():
                if type(value) is type(choice) and value == choice:
                    return Setting(choice, label)
            if self.closed and value is not None:
                raise ValueError(text)
        except ValueError:
            raise InvalidArgumentError(
                f"{origin}: got {text!r}, expected {self.accepted}"
            ) from None
        return Setting(value, as_text(value))

    def _parse(self, text: str) -> Any:
        if self.optional and text.lower() == "none":
            return None
        if not self.many:
            return self._scalar(text)
        items = [item.strip() for item in text.split(",")]
        if "" in items:
            raise ValueError(text)
        return tuple(map(self._scalar, items))

    def _scalar(self, text: str) -> Any:
        if self.kind is bool:
            return _as_bool(text)
        pattern = self.param.pattern
        if pattern is not None and not re.fullmatch(pattern, text):
            raise ValueError(text)
        value = self.kind(text)
        if self.minimum > -math.inf and not value >= self.minimum:
            raise ValueError(text)
        return value

    @property
    def accepted(self) -> str:
        """What the parameter accepts, in words."""
        parts = list(self.choices)
        if not self.closed:
            bound = f" >= {self.minimum:g}" if self.minimum > -math.inf else ""
            pattern = self.param.pattern
            bound += f" matching {pattern}" if pattern else ""
            kind = f"{_SEQUENCES[self.kind]}{bound}, comma-separated" if self.many else None
            parts.append(kind or _SCALARS[self.kind] + bound)
        if self.optional and "None" not in parts:
            parts.append("none")
        return " or ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))

    @property
    def metavar(self) -> str:
        """What the usage shows, without the choices: argparse crashes on spaces."""
        if self.closed:
            return "CHOICE"
        word = "TEXT" if self.kind is str else self.kind.__name__.upper()
        word = f"{word},..." if self.many else word
        return f"CHOICE|{word}" if self.choices else word

    @property
    def flag(self) -> str:
        """Option on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def help(self) -> str:
        """Help of the option: its text, each default, what is accepted, the variable."""
        notes = [f"default: {_visible(self.default.label)}"]
        if self.fast != self.default:
            notes.append(f"fast mode: {_visible(self.fast.label)}")
        if self.full != self.default:
            notes.append(f"recorded: {_visible(self.full.label)}")
        notes.append(f"accepts {self.accepted}")
        if self.param.env:
            notes.append(f"environment variable: {self.param.env}")
        return f"{self.param.help} ({'; '.join(notes)})".lstrip()

    def setting(self, given: str | None, *, fast: bool, full: bool = False) -> Setting:
        """Choose between the command line, the environment and the defaults, in that order."""
        if given is not None:
            return self.read(given, f"option {self.flag}")
        variable = self.param.env
        if variable and (text := os.environ.get(variable)):
            return self.read(text, f"environment variable {variable} (for {self.flag})")
        return self.fast if fast else self.full if full else self.default


def fast_mode() -> bool:
    """Whether the environment variable ``ORTMETER_FAST`` asks for the fast defaults."""
    text = os.environ.get("ORTMETER_FAST") or "0"
    try:
        return _as_bool(text)
    except ValueError:
        raise InvalidArgumentError(
            f"environment variable ORTMETER_FAST: got {text!r}, expected true or false"
        ) from None


def as_text(value: Any) -> str:
    """Write a value as the command line accepts it."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _as_bool(text: str) -> bool:
    if text.lower() not in _BOOLS:
        raise ValueError(text)
    return _BOOLS[text.lower()]


def _named(param: Param) -> dict[str, Any]:
    """Return the choices by name; where sequences are accepted, every choice is one."""
    choices = param.choices
    if choices is None:
        return {}
    if isinstance(choices, str) or not choices:
        raise InvalidArgumentError(f"got choices={choices!r}, expected a collection of values")
    pairs: Iterable[tuple[Any, Any]] = (
        choices.items() if isinstance(choices, Mapping) else ((as_text(v), v) for v in choices)
    )
    return {str(name): _as_choice(value, param) for name, value in pairs}


def _as_choice(value: Any, param: Param) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(value)
    return value if value is None or param.sequence is None else (value,)


def _kind_of(values: list[Any], *, closed: bool) -> type:
    """Return the type of the scalars of *values*; choices of any type are known by name only."""
    nested = (v if isinstance(v, (list, tuple)) else [v] for v in values)
    kinds = {type(item) for items in nested for item in items if item is not None}
    if kinds == {int, float}:
        return float
    if len(kinds) == 1 and kinds <= _SCALARS.keys():
        return kinds.pop()
    if closed or values.count(None) == len(values):
        return str
    names = ", ".join(sorted(k.__name__ for k in kinds)) or "no element"
    raise InvalidArgumentError(
        f"got {names} in the defaults, expected one of bool, int, float, str"
    )


def _visible(label: str) -> str:
    return label if label and label.isprintable() else repr(label)
