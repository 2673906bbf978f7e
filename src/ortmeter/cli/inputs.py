"""Options that give the inputs of models: files, values, sizes of what is random."""

import itertools
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortmeter.cli.options import number, read_pairs
from ortmeter.cli.report import Rows
from ortmeter.cli.terminal import tell
from ortmeter.errors import FeedError, InvalidArgumentError
from ortmeter.runtime.feeds import read_feeds, read_input, shared_feeds
from ortmeter.runtime.inputs import Input, declared_inputs, parse_value
from ortmeter.runtime.loading import load_model

_FEW = 8  # integers that are told

_Known = Mapping[str, Input]


def add_feeds(parser: ArgumentParser) -> None:
    """Declare where the inputs come from."""
    group = parser.add_argument_group("inputs")
    for place, option, metavar, what in (
        (parser, "--dim", "NAME=SIZE", "size of a symbolic dimension of random inputs"),
        (parser, "--shape", "NAME=1x3x224", "shape of a random input"),
        (parser, "--feeds", "[NAME=]FILE", "inputs: a folder, .npz, .npy or .pb file"),
        (group, "--value", "NAME=VALUE", "value of an input: sr=16000, sizes=1,2,3, 'x=[[1, 2]]'"),
    ):
        place.add_argument(
            option, metavar=metavar, action="append", default=[], help=f"{what}; may be repeated"
        )
    group.add_argument("--seed", type=number(0), default=0, help="seed of random inputs (0)")


def make_feeds(options: Namespace, models: Sequence[Path]) -> dict[Path, dict[str, np.ndarray]]:
    """Read the inputs of each model; draw what is not given, once for all the models that share it.

    A size, a shape or a value is for the models that have such a dimension or such an input.
    """
    dims = read_pairs("--dim", options.dim, "NAME=SIZE", _size, at_last=True)
    shapes = read_pairs("--shape", options.shape, "NAME=1x3x224", _shape, at_last=True)
    loaded = {model: load_model(model) for model in models}
    inputs = {model: declared_inputs(proto) for model, proto in loaded.items()}
    known: dict[str, Input] = {}
    for declared in itertools.chain.from_iterable(inputs.values()):
        known.setdefault(declared.name, declared)
    whole, values = _given(options, known)
    if whole is not None:
        if dims or shapes:
            raise InvalidArgumentError(
                "--dim and --shape describe random inputs: remove them or --feeds"
            )
        read: dict[Path, dict[str, np.ndarray]] = {}
        refused: dict[Path, FeedError] = {}
        for model, proto in loaded.items():
            own = {i.name: values[i.name] for i in inputs[model] if i.name in values}
            try:
                read[model] = read_feeds(proto, whole, values=own)
            except FeedError as error:
                refused[model] = error
        read |= {model: _converted(model, inputs, read, why) for model, why in refused.items()}
        return {model: read[model] for model in loaded}
    drawn = shared_feeds(
        list(loaded.values()), dims=dims, shapes=shapes, values=values, seed=options.seed
    )
    return dict(zip(loaded, drawn, strict=True))


def inputs_table(
    options: Namespace, feeds: Mapping[Path, Mapping[str, np.ndarray]], drawn: str = ""
) -> Rows:
    """List what the models are fed: type, shape, the values of a few integers, where it is from."""
    drawn = drawn or f"random, seed {options.seed}"
    names = {name for given in feeds.values() for name in given}
    told = [("--feeds", text) for text in options.feeds]
    told += [("--value", text) for text in options.value]
    # A file of all the inputs is that of no name; the first one counts.
    sources = {_name(text, names): (option, text) for option, text in reversed(told)}
    rows: dict[tuple[str, ...], list[str]] = {}
    for model, given in feeds.items():
        declared = {one.name: one for one in declared_inputs(load_model(model))}
        for name, array in given.items():
            option, text = sources.get(name) or sources.get(None) or ("", drawn)
            source = f"{option} {text.removeprefix(f'{name}=')}".strip()
            if option == "--value" and array.ndim and "," not in text:
                free = [str(size) for size in declared[name].sizes if not isinstance(size, int)]
                source += f"; {', '.join(free)} guessed as 1" * bool(free and array.size == 1)
            few = array.dtype.kind in "iub" and array.size <= _FEW
            value = str(array.tolist()) if few else ""
            shape = "x".join(map(str, array.shape)) or "scalar"
            row = (name, str(array.dtype), shape, value, source)
            rows[row] = [*rows.get(row, []), model.name]
    columns = ("input", "type", "shape", "value", "from")
    if all(len(models) == len(feeds) for models in rows.values()):
        return Rows(columns, tuple(rows))
    several = tuple((*row, ", ".join(models)) for row, models in rows.items())
    return Rows((*columns, "model"), several)


def _converted(
    model: Path,
    inputs: Mapping[Path, Sequence[Input]],
    read: Mapping[Path, Mapping[str, np.ndarray]],
    refusal: FeedError,
) -> dict[str, np.ndarray]:
    """Convert what another model reads, if only their floating-point types differ."""

    def read_by(one: Path) -> list[tuple[str, object]]:
        return [(i.name, i.kind if i.kind == "float" else i.element_type) for i in inputs[one]]

    other = next((one for one in read if read_by(one) == read_by(model)), None)
    if other is None:
        raise refusal
    given = read[other]
    with np.errstate(over="ignore"):
        found = {i.name: given[i.name].astype(i.dtype) for i in inputs[model]}
    moved = [name for name, array in found.items() if array.dtype != given[name].dtype]
    types = ", ".join(f"{name} from {given[name].dtype} to {found[name].dtype}" for name in moved)
    large = sum(int(np.isinf(found[n]).sum() - np.isinf(given[n]).sum()) for n in moved)
    told = f"; too large for it, and infinite: {large} value{'s' * (large > 1)}" if large else ""
    tell(f"inputs are converted for {model.name}: {types}{told}")
    return found


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
        ("--feeds", options.feeds, lambda declared, file: read_input(declared, Path(file))),
    ):
        for text in (text for text in texts if text not in whole):
            if (name := _name(text, known)) is None:
                raise InvalidArgumentError(
                    f"{option}: got {text!r}. Accepted: NAME=VALUE for one of "
                    f"{', '.join(map(str, known.values())) or 'the inputs, there is none'}"
                )
            if name in values:
                raise InvalidArgumentError(f"{option}: {name!r} has a value already")
            values[name] = read(known[name], text.removeprefix(f"{name}="))
    return (whole[0] if whole else None), values


def _name(text: str, known: Iterable[str]) -> str | None:
    """Find the input of ``NAME=...``: a name may have any character."""
    return max((name for name in known if text.startswith(f"{name}=")), key=len, default=None)


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(_size, text.split("x")))


def _size(text: str) -> int:
    size = int(text)
    if size < 0:
        raise ValueError(text)
    return size
