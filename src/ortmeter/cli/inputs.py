"""Options that give the inputs of models: files, values, sizes of what is random."""

import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortmeter.cli.options import number
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.feed_files import read_feeds, read_input
from ortmeter.runtime.feed_values import parse_value
from ortmeter.runtime.feeds import shared_feeds
from ortmeter.runtime.inputs import Input, declared_inputs
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.shapes import lacks_size, symbols

_Known = Mapping[str, Input]


def add_feeds(parser: ArgumentParser) -> None:
    """Declare where the inputs come from."""
    group = parser.add_argument_group("inputs")
    for option, metavar, what in (
        ("--feeds", "[NAME=]FILE", "inputs from a .npz, .npy, .json or .pb file, or a folder"),
        ("--value", "NAME=VALUE", "value of an input: sr=16000, sizes=1,2,3, 'x=[[1, 2]]'"),
        ("--dim", "NAME=SIZE", "size of a symbolic dimension of random inputs"),
        ("--shape", "NAME=1x3x224", "shape of a random input"),
    ):
        group.add_argument(
            option, metavar=metavar, action="append", default=[], help=f"{what}; may be repeated"
        )
    group.add_argument(
        "--size", metavar="1x3x224x224", help="shape of the random input, if one lacks it"
    )
    group.add_argument("--seed", type=number(0), default=0, help="seed of random inputs (0)")


def make_feeds(options: Namespace, models: Sequence[Path]) -> dict[Path, dict[str, np.ndarray]]:
    """Read the inputs of each model; draw what is not given, once for all the models that share it.

    A size, a shape or a value is for the models that have such a dimension or such an input.
    """
    dims = _pairs("--dim", options.dim, _size, "NAME=SIZE")
    shapes = _pairs("--shape", options.shape, _shape, "NAME=1x3x224")
    loaded = {model: load_model(model) for model in models}
    inputs = {model: declared_inputs(proto) for model, proto in loaded.items()}
    every = [one for group in inputs.values() for one in group]
    known: dict[str, Input] = {}
    for one in every:
        known.setdefault(one.name, one)
    whole, values = _given(options, known)
    if whole is not None:
        if dims or shapes or options.size:
            raise InvalidArgumentError(
                "--dim, --shape and --size describe random inputs: remove them or --feeds"
            )
        given = {
            model: {one.name: values[one.name] for one in group if one.name in values}
            for model, group in inputs.items()
        }
        return {model: read_feeds(loaded[model], whole, values=given[model]) for model in models}
    _refuse_unknown("--dim", dims, symbols(every))
    _refuse_unknown("--shape", shapes, known)
    if options.size is not None:
        shaped = {*shapes, *(n for n, v in values.items() if isinstance(v, list | np.ndarray))}
        waiting = [
            [one for one in group if one.name not in shaped and lacks_size(one, dims)]
            for group in inputs.values()
        ]
        shapes |= _sized(options.size, waiting, values)
    drawn = shared_feeds(
        list(loaded.values()), dims=dims, shapes=shapes, values=values, seed=options.seed
    )
    return dict(zip(loaded, drawn, strict=True))


def _given(options: Namespace, known: _Known) -> tuple[str | None, dict[str, Any]]:
    """Read the values of inputs, and the name of the file that has all the others."""
    whole = [text for text in options.feeds if _name(text, known) is None or Path(text).exists()]
    if len(whole) > 1 or (whole and "=" in whole[0] and not Path(whole[0]).exists()):
        raise InvalidArgumentError(
            f"--feeds: got {', '.join(map(repr, whole))}. Accepted: one file for all the inputs, "
            f"or NAME=FILE for one of {', '.join(map(repr, known)) or 'them, there is none'}"
        )
    values: dict[str, Any] = {}
    for option, texts, read in (
        ("--value", options.value, parse_value),
        ("--feeds", options.feeds, lambda one, file: read_input(one, Path(file))),
    ):
        for name, text in _by_input(option, [t for t in texts if t not in whole], known):
            if name in values:
                raise InvalidArgumentError(f"{option}: {name!r} has a value already")
            values[name] = read(known[name], text)
    return (whole[0] if whole else None), values


def _name(text: str, known: _Known) -> str | None:
    """Find the input of ``NAME=...``: a name may have any character."""
    return max((name for name in known if text.startswith(f"{name}=")), key=len, default=None)


def _by_input(option: str, texts: Iterable[str], known: _Known) -> Iterator[tuple[str, str]]:
    for text in texts:
        if (name := _name(text, known)) is None:
            raise InvalidArgumentError(
                f"{option}: got {text!r}. Accepted: NAME=VALUE for one of "
                f"{', '.join(map(str, known.values())) or 'the inputs, there is none'}"
            )
        yield name, text.removeprefix(f"{name}=")


def _sized(
    text: str, waiting: Iterable[Sequence[Input]], filled: Collection[str]
) -> dict[str, tuple[int, ...]]:
    """Give the size to the input that lacks one, in each model: to one that is drawn, if any."""
    try:
        shape = _shape(text)
    except ValueError:
        raise InvalidArgumentError(f"--size: got {text!r}, expected 1x3x224x224") from None
    found: dict[str, tuple[int, ...]] = {}
    for group in waiting:
        lacking = [one for one in group if one.name not in filled] or group
        if len(lacking) > 1:
            options = " ".join(f"--shape {shlex.quote(f'{one.name}=...')}" for one in lacking)
            raise InvalidArgumentError(
                f"--size {text}: {len(lacking)} inputs lack a size, "
                f"{', '.join(map(str, lacking))}. Accepted: {options}"
            )
        found |= {one.name: shape for one in lacking}
    if not found:
        raise InvalidArgumentError(f"--size {text}: no input lacks a size. Accepted: none")
    return found


def _refuse_unknown(option: str, given: Mapping[str, object], known: Collection[str]) -> None:
    if unknown := [name for name in given if name not in known]:
        raise InvalidArgumentError(
            f"{option}: got {', '.join(map(repr, unknown))}. "
            f"Accepted: {', '.join(map(repr, sorted(known))) or 'none, all sizes are fixed'}"
        )


def _pairs(
    option: str, texts: Iterable[str], read: Callable[[str], Any], form: str
) -> dict[str, Any]:
    pairs = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            size = read(value)
        except ValueError:
            name = ""
        if not name:
            raise InvalidArgumentError(f"{option}: got {text!r}, expected {form}")
        if name in pairs:
            raise InvalidArgumentError(f"{option} is given twice for {name!r}")
        pairs[name] = size
    return pairs


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(_size, text.split("x")))


def _size(text: str) -> int:
    size = int(text)
    if size < 0:
        raise ValueError(text)
    return size
