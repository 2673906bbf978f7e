"""Each operator that torch.onnx translates, with each of its arguments at other values.

What the samples of torch call is recorded, as ATen has it. Each argument that is not a tensor then
takes other values, one at a time: those that torch accepts are the samples of ``op_db.py``, run by
``python _unittests/op_db.py --arguments``.
"""

import copy
import dataclasses
import itertools
import re
import types

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

#: Samples of a function whose calls are recorded, and recorded calls of an operator.
SAMPLES, CALLS = 6, 2
# Random, or nothing to compute.
_WITHOUT_VALUES = re.compile("rand|bernoulli|multinomial|normal|dropout|empty|onnx_symbolic")
_VALUES = {
    "bool": (False, True),
    "int": (0, 1, 2, -1),
    "SymInt": (0, 1, 2, -1),
    "float": (0.1, 2.0, -1.5),
    "number": (2, 0.5, -1.5),
    "ScalarType": (torch.float64, torch.int32),
    "str": ("none", "tanh", "trunc", "floor", "mean", "sum", "amax", "reflect", "reduce", "ij"),
}


@dataclasses.dataclass
class Overload:
    """An operator of ATen as the harness takes one of ``op_db``."""

    op: torch._ops.OpOverload
    calls: list
    decorators: tuple = ()

    @property
    def name(self):
        return self.op._opname

    @property
    def formatted_name(self):
        return str(self.op)

    def supported_dtypes(self, _):
        return {torch.float32}

    def sample_inputs(self, *_, **__):
        """Make the recorded calls and those with another value that torch accepts."""
        for call in self.calls:
            for args, kwargs in (call, *filter(self._runs, self._others(*call))):
                yield types.SimpleNamespace(input=args[0], args=args[1:], kwargs=kwargs)

    def _others(self, args, kwargs):
        for i, argument in enumerate(self.op._schema.arguments):
            if argument.name == "sorted":  # without it, any order is right
                continue
            given = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
            for value in _other_values(argument, given):
                if i < len(args):
                    yield (*args[:i], value, *args[i + 1 :]), kwargs
                else:
                    yield args, {**kwargs, argument.name: value}

    def _runs(self, call):
        args, kwargs = copy.deepcopy(call)
        try:
            self.op(*args, **kwargs)
        except Exception:  # noqa: BLE001 - torch refuses this value
            return False
        return True


def _other_values(argument, given):
    """Values of the type of an argument other than the one that is given."""
    _, listed, kind = re.match(r"(Optional\[)?(List\[)?(\w+)", str(argument.real_type)).groups()
    values = _VALUES.get(kind, ())
    if listed:
        count = len(given) if isinstance(given, list | tuple) else argument.N or 1
        values = [[value] * count for value in values]
    return [value for value in values if type(value) is not type(given) or value != given]


class _Recorder(torch.fx.Interpreter):
    def __init__(self, module, calls):
        super().__init__(module)
        self.calls = calls

    def call_function(self, target, args, kwargs):
        if target in self.calls:
            self.calls[target].append(copy.deepcopy((args, kwargs)))
        return super().call_function(target, args, kwargs)


def record(ops):
    """Return each operator that torch.onnx translates with calls of it by samples of *ops*."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    registry = ONNXRegistry.from_torchlib(opset_version=23).functions.values()
    calls = {
        found[0].fx_target: []
        for found in registry
        if isinstance(found[0].fx_target, torch._ops.OpOverload)
        and not _WITHOUT_VALUES.search(str(found[0].fx_target))
    }
    for op in ops:
        types = op.supported_dtypes("cpu")
        dtype = torch.float32 if torch.float32 in types else torch.int64
        try:
            torch.manual_seed(0)
            samples = op.sample_inputs("cpu", dtype, requires_grad=False)
            for sample in itertools.islice(samples, SAMPLES):
                _record(op, sample, calls)
        except Exception:  # noqa: BLE001, S112 - no samples of this type
            continue
    return [Overload(target, _choose(found)) for target, found in calls.items() if found]


def _record(op, sample, calls):
    given = sample.input, sample.args, sample.kwargs
    with torch.no_grad():
        traced = make_fx(lambda x: op.op(x[0], *x[1], **x[2]), pre_dispatch=True)(given)
        _Recorder(traced, calls).run(*tree_leaves(given))


def _choose(found):
    """Keep calls that differ in the kinds of their arguments, the first and the last ones."""
    kinds = {}
    for args, kwargs in found:
        key = repr(tree_map(_kind_of, (args, kwargs)))
        kinds.setdefault(key, (args, kwargs))
    different = list(kinds.values())
    return different[:1] + different[1:][-(CALLS - 1) :]


def _kind_of(value):
    return (value.dtype, value.ndim) if isinstance(value, torch.Tensor) else type(value).__name__
