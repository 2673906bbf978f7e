"""Samples by which torch tests its operators, compiled at every level and compared with eager.

``python _unittests/op_db.py --out FOLDER`` writes one file per operator and hundred of its samples,
skips those that are there, and prints what is wrong. Each file is the work of a child with a time
limit; ``--shard 1/4`` makes a quarter of them. ``--draw 300`` takes a sample of as many operators.
``--arguments`` takes the samples of
``op_arguments.py`` instead.

Most of the time goes into what a graph costs, however small: samples that are right are compiled
several in a graph. Where such a graph is not right, each of them is compiled alone.
"""

import argparse
import cmath
import copy
import dataclasses
import functools
import gc
import itertools
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map

from ortmeter.backend import LEVELS, OrtBackend, session

#: Samples of float32, all of them, and of each other type.
FLOAT32, OTHERS = 10**6, 3
#: Samples of a file, and of a graph.
CHUNK, BATCH = 100, 16
#: Seconds for the samples of a file.
LIMIT = 900
#: Tests of torch whose tolerances also hold here.
_TESTS = {None, "TestCommon", "TestInductorOpInfo"}
VERDICTS = "right", "falls back", "wrong"
_UNINITIALIZED = ("empty", "new_empty")
# Several orders of equal elements are right.
_TIES = {"argsort", "sort", "topk"}


def all_operators():
    """Operators with their samples; the import changes settings of torch."""
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def name_of(op):
    """Name of an operator and of its variant."""
    return op.formatted_name


def types_of(op):
    """Element types of an operator on CPU, float32 first."""
    return sorted(op.supported_dtypes("cpu"), key=lambda t: (t is not torch.float32, str(t)))


def samples_of(op, dtype, count):
    """First samples of an operator, as ``(input, args, kwargs)``; the same in each process."""
    torch.manual_seed(0)
    found = op.sample_inputs("cpu", dtype, requires_grad=False)
    return [(s.input, s.args, s.kwargs) for s in itertools.islice(found, count)]


def tolerance_of(op, dtype):
    """Read the absolute and relative tolerances of torch's own tests for a type."""
    from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
    from torch.testing._internal.opinfo.core import DecorateInfo

    found = [torch.testing._comparison.default_tolerances(dtype)[::-1]]
    for info in op.decorators:
        if isinstance(info, DecorateInfo) and info.cls_name in _TESTS:
            for decorator in info.decorators:
                if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                    found.append(tuple(decorator.d[dtype]))
                if isinstance(decorator, precisionOverride) and dtype in decorator.d:
                    found.append((decorator.d[dtype], 0))
    return max(atol for atol, _ in found), max(rtol for _, rtol in found)


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def tensors_in(values):
    return [leaf for leaf in tree_flatten(values)[0] if is_tensor(leaf)]


def aliases(outputs, inputs):
    """For each tensor of the outputs, which of the inputs and outputs show the same memory."""
    known = [*tensors_in(inputs), *tensors_in(outputs)]
    addresses = [_address(tensor) for tensor in known]
    return [
        [i for i, address in enumerate(addresses) if address and address == _address(tensor)]
        for tensor in tensors_in(outputs)
    ]


def _address(tensor):
    strided = tensor.layout is torch.strided and tensor.numel()
    return tensor.untyped_storage().data_ptr() if strided else 0


def difference(expected, got, tolerance, *, precise=None, values=True):
    """Say how *got* differs from *expected*, which torch computed; an empty text when it does not.

    ``tolerance(dtype)`` is that of a result of this type. A tensor out of it is right when it is as
    close to *precise*, computed in float64, as what torch computed, within a factor of four.
    """
    (wanted, spec), (found, other) = tree_flatten(expected), tree_flatten(got)
    if spec != other:
        return f"structure: {other} instead of {spec}"
    exact = tree_flatten(precise)[0] if precise is not None else [None] * len(wanted)
    for one, two, three in zip(wanted, found, exact, strict=False):
        if not is_tensor(one):
            if type(one) is not type(two) or (values and not _same_number(one, two)):
                return f"value: {two!r} instead of {one!r}"
            continue
        if not is_tensor(two) or (one.dtype, one.shape) != (two.dtype, two.shape):
            return f"type or shape: {_kind(two)} instead of {_kind(one)}"
        if values and (text := _different_values(one, two, three, *tolerance(one.dtype))):
            return text
    return ""


def _same_number(one, two):
    """Whether two numbers are equal, or NaN; what is no number, as a module, is not compared."""
    if not isinstance(one, int | float | complex):
        return True
    return one == two or (cmath.isnan(one) and cmath.isnan(two))


def _kind(value):
    return f"{value.dtype} {list(value.shape)}" if is_tensor(value) else type(value).__name__


def _different_values(expected, got, precise, atol, rtol):
    if expected.layout is not torch.strided:
        expected, got = expected.to_dense(), got.to_dense()
    try:
        torch.testing.assert_close(got, expected, atol=atol, rtol=rtol, equal_nan=True)
    except AssertionError as error:
        if precise is not None and _as_close(expected, got, precise, atol, rtol):
            return ""
        return " ".join(str(error).split())
    return ""


def _as_close(expected, got, precise, atol, rtol):
    if not (got.is_floating_point() and is_tensor(precise) and precise.shape == got.shape):
        return False
    finite = torch.isfinite(expected) & torch.isfinite(got)
    errors = [
        (x.double() - precise)[finite].abs().max().item() for x in (got, expected) if finite.any()
    ]
    if errors and errors[0] > 4 * errors[1]:
        return False
    # what torch loses, as an overflow in 16 bits, may be there
    kept = torch.isclose(got.double(), precise.double(), atol=atol, rtol=rtol, equal_nan=True)
    same = torch.isclose(got, expected, equal_nan=True)
    return bool((finite | kept | same).all())


class Levels:
    """A backend that compiles a graph at several levels and runs it at the one of *current*."""

    def __init__(self, levels, **options):
        self.backends = {level: OrtBackend(level, threads=1, **options) for level in levels}
        self.current = next(iter(levels))

    def __call__(self, module, arguments):
        runs = {level: make(module, arguments) for level, make in self.backends.items()}
        return lambda *arguments: runs[self.current](*arguments)  # noqa: PLW0108 - it changes


def export_once(export):
    """Keep the last export of a graph: the levels start from the same one."""
    last = [None, None]

    @functools.wraps(export)
    def exported(module, arguments):
        key = (id(module), tuple(map(id, arguments)))
        if last[0] != key:
            last[:] = [None, None]
            try:
                made = export(module, arguments)
            except Exception as error:  # noqa: BLE001 - each level meets it
                made = error
            last[:] = key, (made, module, arguments)
        kept = last[1][0]
        if isinstance(kept, Exception):
            raise kept
        return kept and dataclasses.replace(kept, model=kept.model.clone())

    return exported


def try_samples(op, samples, dtype, levels):
    """Compile samples into a graph at several levels; return what each level gives."""

    def call(batch):
        return [op.op(given, *args, **kwargs) for given, args, kwargs in batch]

    with torch.no_grad():
        eager = copy.deepcopy(samples)
        torch.manual_seed(0)
        try:
            expected = call(eager)
        except Exception as error:  # noqa: BLE001 - not a sample
            return {"": f"not run: {type(error).__name__}"}
        torch._dynamo.reset()
        backend = Levels(levels)
        compiled = torch.compile(call, backend=backend)
        return {
            level: _verdict(op, dtype, level, backend, compiled, call, samples, eager, expected)
            for level in levels
        }


def _verdict(op, dtype, level, backend, compiled, call, samples, eager, expected):  # noqa: PLR0917
    backend.current = level
    given = copy.deepcopy(samples)
    torch.manual_seed(0)
    try:
        got = compiled(given)
    except torch._dynamo.exc.TorchRuntimeError as error:  # before any backend
        return f"not run: torch cannot trace it: {' '.join(str(error).split())[:300]}"
    except Exception as error:  # noqa: BLE001 - a backend raises nothing
        return f"wrong: raises {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    made = backend.backends[level]
    values = not op.name.startswith(_UNINITIALIZED)

    def tolerance(result):
        if not (result.is_floating_point or result.is_complex):
            return 0, 0
        atol, rtol = map(max, tolerance_of(op, dtype), tolerance_of(op, result))
        # each node rounds to 16 bits
        return atol, max(rtol, 2 * torch.finfo(result).eps if result.itemsize == 2 else 0)

    text = difference(expected, got, tolerance, values=values)
    if text and dtype in {torch.float16, torch.bfloat16, torch.float32}:
        text = difference(expected, got, tolerance, precise=_in_float64(call, samples))
    if text and op.name in _TIES and not any(kwargs.get("stable") for *_, kwargs in samples):
        chosen = [
            [
                tree_map(functools.partial(_chosen, op, sample), r)
                for sample, r in zip(samples, results, strict=True)
            ]
            for results in (expected, got)
        ]
        text = difference(*chosen, tolerance)
    text = text or difference(eager, given, tolerance, values=values)
    if not text and aliases(expected, eager) != aliases(got, given):
        text = "aliases: outputs share other memory"
    if text:
        return f"wrong: {text[:300]}"
    if made.fallbacks:
        return f"falls back: {made.fallbacks[0].reason}"
    return "right" if made.graphs else "right: nothing to compute"


def _chosen(op, sample, value):
    """Replace indices by what they choose: torch leaves the order of equal elements open."""
    given, args, kwargs = sample
    if not is_tensor(value) or value.dtype is not torch.int64 or not given.ndim:
        return value
    dims = [number for number in args[op.name == "topk" :] if type(number) is int]
    return torch.take_along_dim(given, value, kwargs.get("dim", dims[0] if dims else -1))


def _in_float64(call, samples):
    def wide(value):
        return value.double() if is_tensor(value) and value.is_floating_point() else value

    try:
        torch.manual_seed(0)
        return call(tree_map(wide, copy.deepcopy(samples)))
    except Exception:  # noqa: BLE001 - no float64, no help
        return None


def list_samples(op, counts):
    """Name the samples of an operator: for each its type and its rank."""
    found = []
    for dtype in types_of(op):
        count = counts[0] if dtype is torch.float32 else counts[1]
        try:
            found += [(dtype, i) for i in range(len(samples_of(op, dtype, count) if count else ()))]
        except Exception:  # noqa: BLE001, S112 - torch has no samples of this type
            continue
    return found


def run_samples(op, names, levels, file):
    """Run samples of an operator; write what each gives."""
    start, rows = time.perf_counter(), []
    session.export_graph = export_once(session.export_graph)
    for dtype, named in itertools.groupby(names, key=lambda name: name[0]):
        ranks = [i for _, i in named]
        samples = samples_of(op, dtype, max(ranks) + 1)
        size = 1
        while ranks:
            batch = ranks[:size]
            try:
                found = try_samples(op, [samples[i] for i in batch], dtype, levels)
            except Exception as error:  # noqa: BLE001 - no copy, no comparison of such values
                found = {"": f"not run: {type(error).__name__}: {error}"}
            right = all(text.startswith("right") for text in found.values())
            if right or size == 1:
                rows += [[str(dtype)[6:], i, found] for i in batch]
                del ranks[:size]
            size = min(2 * size, BATCH) if right else 1
    text = {"operator": name_of(op), "rows": rows, "seconds": time.perf_counter() - start}
    file.with_suffix(".part").write_text(json.dumps(text))
    file.with_suffix(".part").rename(file)


def run_all(works, folder, levels, workers=2):
    """Run each ``(op, samples, name of the file)`` in a child; skip those that are done."""
    folder.mkdir(parents=True, exist_ok=True)
    context, running = multiprocessing.get_context("fork"), {}
    waiting = [work for work in works if not (folder / work[2]).exists()]
    while waiting or running:
        while waiting and len(running) < workers:
            op, names, name = waiting.pop(0)
            child = context.Process(target=_quietly, args=(op, names, levels, folder / name))
            child.start()
            running[child] = op, names, folder / name, time.monotonic()
        time.sleep(0.05)
        for child, (op, names, file, start) in list(running.items()):
            if child.is_alive() and time.monotonic() - start < LIMIT:
                continue
            ended = not child.is_alive()
            child.kill()
            child.join()
            del running[child]
            if not file.exists():
                why = f"the child ended with {child.exitcode}" if ended else f"over {LIMIT} s"
                rows = [[str(dtype)[6:], i, {"": f"wrong: {why}"}] for dtype, i in names]
                text = json.dumps({"operator": name_of(op), "rows": rows, "seconds": None})
                file.write_text(text)
    return [json.loads((folder / name).read_text()) for *_, name in works]


def _quietly(*arguments):
    warnings.simplefilter("ignore")
    with open(os.devnull, "w") as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 2)
    torch.set_num_threads(1)
    run_samples(*arguments)


def merge_files(results):
    """Put the files of an operator together."""
    found = {}
    for result in results:
        kept = found.setdefault(result["operator"], {"operator": result["operator"], "rows": []})
        kept["rows"] += result["rows"]
    return found


def verdict(row):
    """Worst of the verdicts of the levels."""
    found = {text.partition(":")[0] for text in row[2].values()}
    return next(v for v in (*reversed(VERDICTS), "not run") if v in found)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/op-db"))
    parser.add_argument("--ops", default="", help="names of operators, all by default")
    parser.add_argument("--arguments", action="store_true", help="see op_arguments.py")
    parser.add_argument("--counts", default=f"{FLOAT32},{OTHERS}", help="float32, other types")
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--draw", type=int, help="operators, all by default, with a sample of each")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--shard", default="1/1", help="2/4: the second quarter of the files")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    names = set(filter(None, args.ops.split(",")))
    ops = [op for op in all_operators() if not names or op.name in names or name_of(op) in names]
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(args.seed)
    if args.draw:
        ops = [ops[i] for i in sorted(rng.permutation(len(ops))[: args.draw])]
    if args.arguments:
        from op_arguments import record

        ops = record(ops)
    warm = torch.compile(torch.relu, backend=OrtBackend(threads=1))
    with torch.no_grad():
        warm(torch.ones(3))
    gc.freeze()  # the children go through their own objects only
    counts = tuple(map(int, args.counts.split(",")))
    start = time.perf_counter()
    listed = [(op, list_samples(op, counts)) for op in ops]
    if args.draw and not args.arguments:
        listed = [(op, [names[rng.integers(len(names))]]) for op, names in listed if names]
    works = [
        (op, names[i : i + CHUNK], f"{name_of(op)}.{i}.json")
        for op, names in listed
        for i in range(0, len(names), CHUNK)
    ]
    works.sort(key=lambda work: int(work[2].split(".")[-2]))  # each operator before the rest of one
    shard, shards = map(int, args.shard.split("/"))
    works = works[shard - 1 :: shards]
    results = merge_files(run_all(works, args.out, args.levels.split(","), args.workers))
    total = Counter(verdict(row) for result in results.values() for row in result["rows"])
    for result in results.values():
        for dtype, i, verdicts in result["rows"]:
            for level, text in verdicts.items():
                if text.startswith("wrong"):
                    print(result["operator"], dtype, i, level, text)  # noqa: T201
    print(f"{len(results)} operators", dict(total), f"{time.perf_counter() - start:.0f} s")  # noqa: T201
    sys.exit(total["wrong"] > 0)


if __name__ == "__main__":
    main()
