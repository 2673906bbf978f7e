"""Parameters of a page: one declaration for the command line, the notebook and the fast mode."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NoReturn

from ortmeter.errors import InvalidArgumentError
from ortmeter.study.params import Declaration, Param, Setting, as_text, fast_mode

__all__ = ["Arguments", "Param", "get_parsed_args"]

# Programs that run somebody else's code: what follows their name is theirs.
_HOSTS = {
    *("pytest", "py.test", "_jb_pytest_runner", "unittest"),
    *("sphinx", "sphinx-build"),
    *("ipython", "ipython3", "jupyter", "ipykernel", "ipykernel_launcher"),
    *("colab_kernel_launcher", "spyder_kernels"),
}


class Arguments:
    """Values of the parameters of a page, as read-only attributes.

    :func:`get_parsed_args` returns it. Iterating yields pairs (name, value).

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
        declarations: Mapping[str, Declaration],
        settings: Mapping[str, Setting],
        *,
        fast: bool,
    ) -> None:
        self.__dict__.update({key: setting.value for key, setting in settings.items()})
        self.__dict__.update(_name=name, _fast=fast)
        self.__dict__.update(_declarations=dict(declarations), _settings=dict(settings))

    @property
    def fast(self) -> bool:
        """Whether the fast mode is on (environment variable ``ORTMETER_FAST``)."""
        return bool(self._fast)

    def label(self, name: str) -> str:
        """Return the displayed text of a parameter: the name of a choice, or the value."""
        if name not in self._settings:
            raise InvalidArgumentError(f"got parameter {name!r}, expected {self._names()}")
        return str(self._settings[name].label)

    def _names(self) -> str:
        return " or ".join(self.__dict__.get("_settings", ()))

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, setting.value) for name, setting in self._settings.items())

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"got parameter {name!r}, expected {self._names()}", name=name, obj=self
        )

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"arguments cannot be changed, got {name}={value!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"arguments cannot be changed, got a deletion of {name!r}")

    def __str__(self) -> str:
        return ", ".join(f"{name}={_display(s)}" for name, s in self._settings.items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def _repr_html_(self) -> str:
        mode = ", fast mode" if self.fast else ""
        rows = (
            (declaration.flag, _display(self._settings[name]), declaration.param.help)
            for name, declaration in self._declarations.items()
        )
        cells = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in rows)
        return (
            f"<table><caption>Parameters of {escape(self._name)}{mode}</caption>"
            "<thead><tr><th>option</th><th>value</th><th>help</th></tr></thead><tbody>"
            + "".join(f"<tr>{row}</tr>" for row in cells)
            + "</tbody></table>"
        )


# Attributes of the class, and what argparse keeps for itself.
_RESERVED = frozenset({"help", *(n for n in vars(Arguments) if not n.startswith("_"))})


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
    declarations = {key: _declare(key, declared) for key, declared in params.items()}
    parser = _make_parser(name, description, declarations)
    argv, is_program = command_line() if args is None else (_checked(args), False)
    try:
        given = _read_options(parser, argv, declarations)
        fast, asked = fast_mode(), declarations.get("record")
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


def _declare(name: str, declared: Any) -> Declaration:
    if name in _RESERVED or name.startswith("_") or not name.isidentifier():
        reserved = ", ".join(sorted(_RESERVED))
        raise InvalidArgumentError(
            f"got parameter name {name!r}, expected an identifier that neither starts with '_' "
            f"nor is one of {reserved}"
        )
    try:
        return Declaration(name, declared)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"parameter {name!r}: {error}") from None


def _make_parser(
    name: str, description: str | None, declarations: Mapping[str, Declaration]
) -> argparse.ArgumentParser:
    # argparse expands % in a help always, in a description only when it finds "%(prog)".
    if description and "%(prog)" in description:
        description = description.replace("%", "%%")
    parser = _Parser(name, description=description, allow_abbrev=False)
    for key, declaration in declarations.items():
        is_flag = declaration.kind is bool
        parser.add_argument(
            declaration.flag,
            dest=key,
            default=argparse.SUPPRESS,
            help=declaration.help.replace("%", "%%"),
            metavar=declaration.metavar,
            nargs="?" if is_flag else None,
            const="true" if is_flag else None,
        )
    return parser


def _read_options(
    parser: argparse.ArgumentParser, argv: Sequence[str], declarations: Mapping[str, Declaration]
) -> dict[str, str]:
    """Return the text given to each option."""
    flags = [declaration.flag for declaration in declarations.values()]
    given, unknown = parser.parse_known_args(_normalized(argv, flags))
    if unknown:
        raise InvalidArgumentError(
            f"got unknown argument {' '.join(unknown)}, "
            f"expected {', '.join(flags) or 'no argument'}"
        )
    return vars(given)


def _normalized(argv: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Write options with hyphens and attach values such as -1e-3, which argparse would refuse."""
    tokens: list[str] = []
    for token in argv:
        option, equal, value = token.partition("=")
        if (flag := option.replace("_", "-")) in flags:
            tokens.append(flag + equal + value)
        elif tokens and tokens[-1] in flags and token[:1] == "-" and token[1:2] not in ("-", "h"):
            tokens[-1] += "=" + token
        else:
            tokens.append(token)
    return tokens


def _checked(args: Sequence[str]) -> list[str]:
    if isinstance(args, str):
        raise InvalidArgumentError(f"args: got {args!r}, expected a list such as {args.split()}")
    return [str(token) for token in args]


def _display(setting: Setting) -> str:
    """Write the label on one line, and the value when the label is the name of something else."""
    value = as_text(setting.value)
    label = setting.label if setting.label.isprintable() else repr(setting.label)
    if value == setting.label:
        return label
    return f"{label} ({' '.join(value.replace(',', ', ').split())})"


def command_line() -> tuple[list[str], bool]:
    """Return the arguments meant for the page, and whether the page is the program."""
    script = sys.argv[0] if sys.argv else ""
    # runpy renames the program but leaves it the arguments of the program that called it.
    started = sys.orig_argv[-len(sys.argv) :]
    caller = started[0] if started[1:] == sys.argv[1:] else script
    if _is_host(script) or _is_host(caller):
        return [], False
    if in_ipython():
        return (sys.argv[1:] if _is_main(script) else []), False
    return sys.argv[1:], True


def _is_host(program: str) -> bool:
    path = Path(program)
    stem = path.name.removesuffix(".exe").removesuffix(".py")
    return (path.parent.name if stem == "__main__" else stem) in _HOSTS


def in_ipython() -> bool:
    """Whether a notebook or an IPython shell runs this code."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _is_main(script: str) -> bool:
    """Whether *script* is what runs now, as ``%run`` pretends; a notebook has no file."""
    main = getattr(sys.modules["__main__"], "__file__", None)
    return main is not None and Path(main).resolve() == Path(script).resolve()
