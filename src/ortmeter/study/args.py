"""Parameters of a page: one declaration for the command line, the notebook and the fast mode.

Every value takes the same road. A default is written as text, then read as if it came from the
command line: what is refused there is refused everywhere, and every value has a text to display.
"""

import argparse
import math
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ortmeter.errors import InvalidArgumentError

__all__ = ["Arguments", "Param", "get_parsed_args"]

_BOOLS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(
    ("false", "0", "no", "off"), False
)
_SCALARS = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
_SEQUENCES = {int: "integers", float: "numbers", str: "texts"}
# Programs that run somebody else's code: what follows their name is theirs.
_HOSTS = {
    *("pytest", "py.test", "_jb_pytest_runner", "unittest"),
    *("sphinx", "sphinx-build"),
    *("ipython", "ipython3", "jupyter", "ipykernel", "ipykernel_launcher"),
    *("colab_kernel_launcher", "spyder_kernels"),
}


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
        If the values are sequences, any other text, such as ``256,512``, is read as a sequence.
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
    >>> sizes = Param("small", choices={"small": (256, 512), "large": (4096,)})
    >>> get_parsed_args("plot_x", args=[], config=sizes).config
    (256, 512)
    >>> get_parsed_args("plot_x", args=["--config", "8,16"], config=sizes).config
    (8, 16)
    """

    default: Any
    fast: Any = ...
    full: Any = ...
    choices: Collection[Any] | None = None
    help: str = ""
    env: str | None = None
    minimum: float | None = None
    pattern: str | None = None


@dataclass(frozen=True)
class _Setting:
    """Value of a parameter and the text that displays it."""

    value: Any
    label: str

    def __str__(self) -> str:
        value = _as_text(self.value)
        return self.label if value == self.label else f"{self.label} ({value.replace(',', ', ')})"


class _Declaration:
    """A named parameter: it reads its text, and its defaults have been read."""

    def __init__(self, name: str, declared: Any) -> None:
        self.flag = "--" + name.replace("_", "-")
        self.param = param = declared if isinstance(declared, Param) else Param(declared)
        self.choices = _named(param)
        defaults = [d for d in (param.default, param.fast, param.full) if d is not ...]
        examples = list(self.choices.values()) or defaults
        self.kind = _kind_of(examples)
        self.many = any(isinstance(v, list | tuple) for v in examples)
        self.optional = any(v is None for v in (*defaults, *examples))
        self.closed = bool(self.choices) and not self.many
        least = 1 if self.many and self.kind is int else -math.inf
        self.minimum = least if param.minimum is None else param.minimum
        self.default = self._read_default(param.default, "default")
        self.fast = self._read_default(param.fast, "fast default")
        self.full = self._read_default(param.full, "full default")

    def _read_default(self, default: Any, what: str) -> _Setting:
        if default is ...:
            return self.default
        return self.read(_as_text(default), f"{what} of {self.flag}")

    def read(self, text: str, origin: str) -> _Setting:
        """Read *text*; *origin* says in the error where it comes from."""
        if text in self.choices:
            return _Setting(self.choices[text], text)
        try:
            value = self._parse(text)
            for label, choice in self.choices.items():
                if type(value) is type(choice) and value == choice:
                    return _Setting(choice, label)
            if self.closed and value is not None:
                raise ValueError(text)
        except (KeyError, ValueError):
            raise InvalidArgumentError(
                f"{origin}: got {text!r}, expected {self.accepted}"
            ) from None
        return _Setting(value, _as_text(value))

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
            return _BOOLS[text.lower()]
        value = self.kind(text)
        matches = self.param.pattern is None or re.fullmatch(self.param.pattern, text)
        if not matches or (self.minimum > -math.inf and not value >= self.minimum):
            raise ValueError(text)
        return value

    @property
    def accepted(self) -> str:
        """What the parameter accepts, in words."""
        parts = list(self.choices)
        if not self.closed:
            bound = f" >= {self.minimum:g}" if self.minimum > -math.inf else ""
            bound += f" matching {self.param.pattern}" if self.param.pattern else ""
            several = f"{_SEQUENCES[self.kind]}{bound}, comma-separated" if self.many else ""
            parts.append(several or _SCALARS[self.kind] + bound)
        if self.optional and "None" not in parts:
            parts.append("none")
        return " or ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))

    @property
    def metavar(self) -> str:
        """What the usage shows, without the choices: argparse crashes on spaces."""
        if self.closed:
            return "CHOICE"
        word = "TEXT" if self.kind is str else self.kind.__name__.upper()
        return "CHOICE|" * bool(self.choices) + word + ",..." * self.many

    @property
    def help(self) -> str:
        """Help of the option: its text, each default, what is accepted, the variable."""
        notes = [f"default: {self.default.label or repr('')}"]
        notes += [f"fast mode: {self.fast.label}"] if self.fast != self.default else []
        notes += [f"recorded: {self.full.label}"] if self.full != self.default else []
        notes.append(f"accepts {self.accepted}")
        notes += [f"environment variable: {self.param.env}"] if self.param.env else []
        return f"{self.param.help} ({'; '.join(notes)})".lstrip()

    def setting(self, given: str | None, *, fast: bool, full: bool = False) -> _Setting:
        """Choose between the command line, the environment and the defaults, in that order."""
        if given is not None:
            return self.read(given, f"option {self.flag}")
        variable = self.param.env
        if variable and (text := os.environ.get(variable)):
            return self.read(text, f"environment variable {variable} (for {self.flag})")
        return self.fast if fast else self.full if full else self.default


def _as_text(value: Any) -> str:
    """Write a value as the command line accepts it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _named(param: Param) -> dict[str, Any]:
    """Return the choices by name."""
    choices = param.choices or {}
    pairs = choices if isinstance(choices, Mapping) else {_as_text(v): v for v in choices}
    return {str(name): tuple(v) if isinstance(v, list) else v for name, v in pairs.items()}


def _kind_of(values: list[Any]) -> type:
    """Return the type of the scalars of *values*, that of texts where they have several."""
    nested = (v if isinstance(v, list | tuple) else [v] for v in values)
    kinds = {type(item) for items in nested for item in items if item is not None}
    if kinds == {int, float}:
        return float
    return kinds.pop() if len(kinds) == 1 and kinds <= _SCALARS.keys() else str


class Arguments:
    """Values of the parameters of a page, as attributes.

    :func:`get_parsed_args` returns it. Iterating yields pairs (name, value); ``fast`` says whether
    the fast mode is on (environment variable ``ORTMETER_FAST``).

    Examples
    --------
    >>> args = get_parsed_args("plot_x", args=["--size", "512"], size=256, provider="cpu")
    >>> args.size
    512
    >>> print(args)
    size=512, provider=cpu
    >>> dict(args)
    {'size': 512, 'provider': 'cpu'}
    """

    def __init__(
        self,
        name: str,
        declarations: Mapping[str, _Declaration],
        settings: Mapping[str, _Setting],
        *,
        fast: bool,
    ) -> None:
        self.__dict__.update({key: setting.value for key, setting in settings.items()})
        self.fast, self._name = fast, name
        self._declarations, self._settings = declarations, settings

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def label(self, name: str) -> str:
        """Return the displayed text of a parameter: the name of a choice, or the value."""
        return self._settings[name].label

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, setting.value) for name, setting in self._settings.items())

    def __str__(self) -> str:
        return ", ".join(f"{name}={setting}" for name, setting in self._settings.items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def _repr_html_(self) -> str:
        mode = ", fast mode" if self.fast else ""
        rows = (
            (declaration.flag, str(self._settings[name]), declaration.param.help)
            for name, declaration in self._declarations.items()
        )
        cells = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in rows)
        return (
            f"<table><caption>Parameters of {escape(self._name)}{mode}</caption>"
            "<thead><tr><th>option</th><th>value</th><th>help</th></tr></thead><tbody>"
            + "".join(f"<tr>{row}</tr>" for row in cells)
            + "</tbody></table>"
        )


def get_parsed_args(
    name: str,
    description: str | None = None,
    args: Sequence[str] | None = None,
    **params: Any,
) -> Arguments:
    """Read the parameters of a page.

    The first value found is used: command line, environment variable of the parameter, fast default
    if ``ORTMETER_FAST=1``, full default if the parameter ``record`` is true, default.

    Parameters
    ----------
    name : str
        Name of the page, shown by ``--help`` and in errors.
    description : str, optional
        First paragraph of ``--help``.
    args : sequence of str, optional
        Arguments to read, by default the command line of the program. The arguments of pytest,
        sphinx-build or a notebook kernel are ignored; those of ``%run plot_x.py --config large``
        in IPython are read.
    **params : bool, int, float, str, None, sequence or Param
        Declaration of each parameter. ``num_layers`` is set by ``--num-layers`` or
        ``--num_layers``.

    Returns
    -------
    Arguments
        The values as attributes.

    Raises
    ------
    InvalidArgumentError
        A declaration is wrong, or a value is not accepted. If the page is the program, a value
        that is not accepted prints the usage and exits with code 2 instead.

    Examples
    --------
    >>> args = get_parsed_args(
    ...     "plot_x",
    ...     args=["--config", "large", "--with-mask"],
    ...     config=Param("small", choices={"small": (256, 512), "large": (2048,)}, help="sizes"),
    ...     with_mask=Param(False, help="use a causal mask"),
    ... )
    >>> args.config, args.with_mask
    ((2048,), True)
    >>> args.label("config")
    'large'
    >>> print(args)
    config=large (2048), with_mask=True
    """
    declarations = {key: _Declaration(key, declared) for key, declared in params.items()}
    parser = _Parser(name, description=description, allow_abbrev=False)
    for key, one in declarations.items():
        flag: dict[str, Any] = {"nargs": "?", "const": "true"} if one.kind is bool else {}
        flag |= {"help": one.help.replace("%", "%%"), "metavar": one.metavar}
        parser.add_argument(one.flag, dest=key, default=argparse.SUPPRESS, **flag)
    argv, is_program = command_line() if args is None else ([*args], False)
    argv = [re.sub(r"^--[\w-]+", lambda option: option[0].replace("_", "-"), a) for a in argv]
    try:
        given, fast = vars(parser.parse_args(argv)), _fast_mode()
        asked = declarations.get("record")
        full = asked is not None and bool(asked.setting(given.get("record"), fast=fast).value)
        settings = {
            key: declaration.setting(given.get(key), fast=fast, full=full)
            for key, declaration in declarations.items()
        }
    except InvalidArgumentError as error:
        if not is_program:
            raise InvalidArgumentError(f"{name}: {error}") from None
        parser.print_usage(sys.stderr)
        parser.exit(2, f"{name}: error: {error}\n")
    return Arguments(name, declarations, settings, fast=fast)


class _Parser(argparse.ArgumentParser):
    """Parser that raises: the caller knows whether it may exit."""

    def error(self, message: str) -> NoReturn:
        raise InvalidArgumentError(message)


def _fast_mode() -> bool:
    """Whether the environment variable ``ORTMETER_FAST`` asks for the fast defaults."""
    text = os.environ.get("ORTMETER_FAST") or "0"
    return bool(_Declaration("fast", False).read(text, "environment variable ORTMETER_FAST").value)


def command_line() -> tuple[list[str], bool]:
    """Return the arguments meant for the page, and whether the page is the program."""
    script = sys.argv[0] if sys.argv else ""
    # runpy renames the program but leaves it the arguments of the program that called it.
    started = sys.orig_argv[-len(sys.argv) :]
    caller = started[0] if started[1:] == sys.argv[1:] else script
    if _is_host(script) or _is_host(caller):
        return [], False
    if in_ipython():
        # What %run pretends to be; a notebook has no file.
        main = getattr(sys.modules["__main__"], "__file__", None)
        is_main = main is not None and Path(main).resolve() == Path(script).resolve()
        return (sys.argv[1:] if is_main else []), False
    return sys.argv[1:], True


def _is_host(program: str) -> bool:
    path = Path(program)
    stem = path.name.removesuffix(".exe").removesuffix(".py")
    return (path.parent.name if stem == "__main__" else stem) in _HOSTS


def in_ipython() -> bool:
    """Whether a notebook or an IPython shell runs this code."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None
