"""What operators give for special values: our kernels, onnx.reference and ONNX Runtime.

The single nodes of the tests of ONNX run again with NaN, infinities, zeros of both signs,
denormals, extremes of types, no element, one element and strides. Two that agree judge the third.
Child processes run them: ONNX Runtime ends a few. Where ONNX specifies no result (floats to
integers out of range, integers divided by zero, shifts beyond the bits), a row is no fault.

``python _unittests/special_values.py --ops Where,ReduceSum --odd ort`` prints a table.
"""

import argparse
import itertools
import multiprocessing
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import torch
from node_tests import load_cases

from ortmeter.dtypes import numpy_dtype, onnx_type
from ortmeter.evaluator import Evaluator
from ortmeter.operators import find_kernel
from ortmeter.runtime.arrays import as_numpy

OURS, REFERENCE, ORT = SOURCES = ("torch", "reference", "ort")
TYPES = ("f32", "f64", "f16", "i64", "i32", "i8", "u8", "u64", "b8")
MOST = 6  # nodes of an operator and type
_TOLERANCES = {2: 5e-3, 4: 1e-4, 8: 1e-6}  # by size of a floating-point type
_LIMIT = 20  # seconds of a node
_SKIPPED = {"Range", "ConstantOfShape", "HannWindow", "HammingWindow", "BlackmanWindow"}  # of sizes
_DEPTH = ("OneHot", "T2")  # another size


class Trial(NamedTuple):
    """A model of one node, and what it reads."""

    op: str
    dtype: str
    what: str
    name: str
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]


class Row(NamedTuple):
    """A result that differs from two that agree, or all three when none agree."""

    odd: str  # a source, or "all"
    op: str
    dtype: str
    what: str
    name: str
    how: str  # what differs: crash, error, kind, NaN, infinity, value, sign of zero, strides
    told: str


def specials(dtype: np.dtype[Any]) -> list[Any]:
    """List the special values of a type, and usual ones."""
    if dtype.kind == "f":
        info = np.finfo(dtype)
        tiny = info.smallest_subnormal
        return [np.nan, np.inf, -np.inf, -0.0, 0.0, tiny, -tiny, info.max, info.min, 1, -2.5]
    if dtype.kind == "b":
        return [False, True]
    integers = np.iinfo(dtype)
    odd = [2**53 + 1] if integers.max > 2**53 else []  # float64 does not hold it
    return [integers.max, integers.min, *odd, 0, 1, 3]


def trials(ops: Iterable[str], types: Iterable[str], most: int) -> Iterator[Trial]:
    """List what to run: for each node of the tests of ONNX, types, then values and shapes."""
    chosen, seen, counts = set(ops), set(), Counter[tuple[str, ...]]()
    for case in load_cases():
        node, feeds = case.model.graph.node[0], case.data[0][0]
        opset = max((o.version for o in case.model.opset_import if not o.domain), default=0)
        if len(case.model.graph.node) > 1 or not opset or not feeds or node.op_type in _SKIPPED:
            continue
        if (chosen and node.op_type not in chosen) or not all(map(_is_numeric, feeds.values())):
            continue
        if find_kernel(node.domain, node.op_type, opset) is None:
            continue
        schema = onnx.defs.get_schema(node.op_type, opset)
        declared = [given.type_str for given in schema.inputs]
        declared += declared[-1:] * len(node.input)  # the last one may be repeated
        kinds = dict(zip(node.input, declared, strict=False))
        feeds = {name: feeds[name] for name in kinds if name in feeds}
        for kind, dtype in itertools.product(dict.fromkeys(kinds.values()), types):
            data = [name for name in feeds if kinds[name] == kind]
            if not data or not _is_filled(schema, kind, dtype, first=kind == declared[0]):
                continue
            with np.errstate(all="ignore"):
                typed = {name: feeds[name].astype(numpy_dtype(dtype)) for name in data}
            given = feeds | typed
            signs = [(name, x.dtype.name, x.shape) for name, x in given.items()]
            key = str((node.op_type, node.attribute, signs))
            if key in seen or counts[node.op_type, kind, dtype] == most:
                continue
            seen.add(key)
            counts[node.op_type, kind, dtype] += 1
            model = _model(node, given, schema.since_version)
            for what, values in _variants(typed, numpy_dtype(dtype)):
                yield Trial(node.op_type, dtype, what, case.name, model, given | values)


def _is_numeric(value: Any) -> bool:
    given = getattr(value, "dtype", np.dtype(object))  # others than arrays have none
    return given.isbuiltin == 1 and given.kind in "biuf"


def _is_filled(schema: Any, kind: str, dtype: str, *, first: bool) -> bool:
    """Tell whether the inputs of a kind hold values of a type, not sizes nor positions."""
    accepted = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    allowed = accepted.get(kind, [kind] if first else [])
    wanted = f"tensor({onnx.TensorProto.DataType.Name(onnx_type(dtype)).lower()})"
    is_size = (schema.name, kind) == _DEPTH
    return wanted in allowed and (first or "tensor(float)" in allowed) and not is_size


def _model(node: onnx.NodeProto, feeds: dict[str, np.ndarray], opset: int) -> onnx.ModelProto:
    types = {key: onnx_type(x.dtype) for key, x in feeds.items()}
    inputs = [onnx.helper.make_tensor_value_info(key, kind, None) for key, kind in types.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "node", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _variants(
    data: dict[str, np.ndarray], dtype: np.dtype[Any]
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Put special values in place of others, or change the shapes."""
    first, *_ = data
    shape, values = data[first].shape, specials(dtype)
    alike = [key for key, x in data.items() if x.shape == shape]
    if len(alike) == len(data) <= 3:
        grid = zip(*itertools.product(values, repeat=len(data)), strict=True)
        yield "grid", {key: np.array(column, dtype) for key, column in zip(data, grid, strict=True)}
    yield "as given", {}
    for value in values:
        if data[first].size:
            one = data[first].copy()
            one.reshape(-1)[one.size // 2] = value
            yield f"one {value}", {first: one}
        yield f"all {value}", {key: np.full_like(x, value) for key, x in data.items()}
    for axis in range(len(shape)):
        cut = (*[slice(None)] * axis, slice(0))
        yield f"empty axis {axis}", {key: data[key][cut] for key in alike}
    yield "one element", {key: data[key][tuple(slice(1) for _ in shape)] for key in alike}


class _Runner:
    """Run trials; the evaluators of a model are kept until the next one."""

    def __init__(self) -> None:
        self._model: Any = None
        self._evaluators: dict[str, Evaluator] = {}

    def run(self, trial: Trial, source: str, feeds: dict[str, Any]) -> list[np.ndarray] | str:
        """Return the outputs, or what was raised."""
        if trial.model is not self._model:
            self._model, self._evaluators = trial.model, {}
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                if source not in self._evaluators:
                    options = {trial.op: source}, (source,)
                    self._evaluators[source] = Evaluator(trial.model, *options)
                got = self._evaluators[source].run(None, feeds)
                flat = itertools.chain(*(x if isinstance(x, list) else [x] for x in got))
                return [as_numpy(x) for x in flat]
        except Exception as error:  # noqa: BLE001 - any failure is a result of the table
            text = f"{type(error).__name__}: {error}"
            return "refused" if "No kernel" in text or "NOT_IMPL" in text else text


def judge(trial: Trial, found: dict[str, list[np.ndarray] | str]) -> Iterator[Row]:
    """Tell which source differs from two that agree, output by output and element by element."""
    answers = {name: got for name, got in found.items() if not isinstance(got, str)}
    if len(answers) == len(SOURCES):
        for outputs in zip(*answers.values(), strict=False):
            yield from _judge_output(trial, dict(zip(answers, outputs, strict=True)))
    elif len(answers) == len(SOURCES) - 1 and "refused" not in found.values():
        (odd,) = found.keys() - answers.keys()
        pairs = zip(*answers.values(), strict=False)
        if all(x.shape == y.shape and same(x, y, trial).all() for x, y in pairs):
            yield _row(trial, odd, "error", str(found[odd]))


def _judge_output(trial: Trial, arrays: dict[str, np.ndarray]) -> Iterator[Row]:
    kinds = {name: f"{x.dtype}{list(x.shape)}" for name, x in arrays.items()}
    counts = Counter(kinds.values())
    if len(counts) > 1:
        alone = [name for name, kind in kinds.items() if counts[kind] == 1]
        yield _row(trial, alone[0] if len(alone) == 1 else "all", "kind", str(kinds))
        return
    x, y, z = arrays.values()
    for aspect, equal in (("value", same), ("sign of zero", _same_sign)):
        agree = [equal(*pair, trial) for pair in ((y, z), (x, z), (x, y))]
        odd = zip((*SOURCES, "all"), (*agree, ~np.any(agree, axis=0)), strict=True)
        for name, mask in odd:
            mask = mask & (np.sum(agree, axis=0) < 2)  # noqa: PLW2901 - not all alike
            if mask.any():
                at = np.unravel_index(int(mask.argmax()), mask.shape)
                values = {key: array[at] for key, array in arrays.items()}
                read = ", ".join(str(x[at]) for x in trial.feeds.values() if x.shape == mask.shape)
                told = " ".join(f"{key}={value}" for key, value in values.items())
                how = aspect if aspect != "value" else _name([*values.values()])
                yield _row(trial, name, how, f"({read}) {told}")


def _name(values: list[Any]) -> str:
    numbers = [float(value) for value in values]
    for name, test in (("NaN", np.isnan), ("infinity", np.isinf)):
        if len({bool(test(number)) for number in numbers}) > 1:
            return name
    return "value"


def _row(trial: Trial, odd: str, how: str, told: str) -> Row:
    return Row(odd, *trial[:4], how, " ".join(told.split())[:160])


def same(x: np.ndarray, y: np.ndarray, trial: Trial) -> np.ndarray:
    """Mask what is equal, or as close as correct computations are."""
    if x.dtype.kind in "biu":
        return np.asarray(x == y)
    rtol = _TOLERANCES.get(x.dtype.itemsize, 0.1)
    x, y = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    # Sums of terms of any size have the error of their largest one.
    largest = 0 if trial.what == "grid" else np.max(np.abs(y), where=finite, initial=0)
    with np.errstate(all="ignore"):
        return np.asarray(np.isclose(x, y, rtol=rtol, atol=rtol * largest, equal_nan=True))


def _same_sign(x: np.ndarray, y: np.ndarray, _trial: Trial) -> np.ndarray:
    if x.dtype.kind != "f" or not _is_numeric(x):
        return np.ones(x.shape, np.bool_)
    return np.asarray((x != 0) | (y != 0) | (np.signbit(x) == np.signbit(y)))


def sweep(todo: Iterable[Trial], send: Any, start: int) -> None:
    """Run trials from one on; tell before each run, since it may end the process, and after."""
    torch.set_num_threads(1)
    runner = _Runner()
    for number, trial in enumerate(todo):
        if number < start:
            continue
        found = {}
        for source in SOURCES:
            send((number, source, *trial[:4]))
            found[source] = runner.run(trial, source, trial.feeds)
        rows = [*judge(trial, found)]
        if trial.what == "as given" and not isinstance(found[OURS], str):
            twice = {key: np.stack((x, x), -1) for key, x in trial.feeds.items()}
            strided = {key: torch.from_numpy(x)[..., 0] for key, x in twice.items()}
            got = runner.run(trial, OURS, strided)
            pairs = zip(found[OURS], got, strict=False)
            if isinstance(got, str) or not all(same(x, y, trial).all() for x, y in pairs):
                rows.append(_row(trial, OURS, "strides", str(got)))
        send(rows)


def run(ops: Iterable[str] = (), types: Iterable[str] = TYPES, most: int = MOST) -> list[Row]:
    """Run the trials that are chosen in child processes, one more after each crash."""
    rows, start = [], 0
    load_cases()  # once, for all the children
    while True:
        here, there = multiprocessing.Pipe(duplex=False)
        todo = trials(ops, types, most)
        fork = multiprocessing.get_context("fork")
        child = fork.Process(target=sweep, args=(todo, there.send, start), daemon=True)
        child.start()
        there.close()
        last, how = (start, "none"), "too long"
        try:
            while here.poll(_LIMIT):
                message = here.recv()
                if isinstance(message, list):
                    rows += message
                else:
                    last = message
            child.kill()
        except EOFError:
            child.join()
            how = f"exit {child.exitcode}"
        if child.exitcode == 0:
            return rows
        if (child.exitcode or 0) > 0:
            raise RuntimeError(f"the sweep failed after {last}")
        rows.append(Row(last[1], *last[2:], "crash", how))
        start = last[0] + 1


def main() -> None:
    """Print the rows, one per operator, type and difference unless every one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default="", help="operators, separated by commas")
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--most", type=int, default=MOST, help="nodes of an operator and type")
    parser.add_argument("--odd", default="", help="torch, reference, ort or all")
    parser.add_argument("--every", action="store_true", help="every row")
    given = parser.parse_args()
    seen = set()
    ops = [op for op in given.ops.split(",") if op]
    for row in run(ops, given.types.split(","), given.most):
        key = (row.odd, row.op, row.dtype, row.how)
        if given.odd in {"", row.odd} and (given.every or key not in seen):
            seen.add(key)
            sys.stdout.write(" | ".join(row) + "\n")


if __name__ == "__main__":
    main()
