"""A model as calls of torch on tensors made once, and little around them."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ortmeter.errors import ModelError
from ortmeter.evaluator import Evaluator
from ortmeter.evaluator.evaluation import parts
from ortmeter.evaluator.plan import NodeStep, Plan
from ortmeter.operators import find_operator
from ortmeter.optional import import_optional
from ortmeter.runtime.loading import ModelLike
from ortmeter.runtime.providers import Provider

import_optional("torch", "torch")

import torch  # noqa: E402 - once the extra is known
from torch import Tensor  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

__all__ = ["TorchProgram"]


class TorchProgram:
    """The nodes of a model on the kernels of torch, or on its own functions where they agree.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    feeds : mapping of str to array
        Inputs; they are copied to the device once.
    device : Provider or str
        Where torch runs.
    tf32 : bool
        Let CUDA round the operands of float32 products to TF32.

    Raises
    ------
    ModelError
        A node has no kernel.

    Notes
    -----
    Some results of torch are views: ``Transpose`` moves nothing. They are copied, since ONNX
    Runtime writes its outputs.

    Examples
    --------
    >>> import numpy as np
    >>> text = '''<ir_version: 8, opset_import: ["": 13]>
    ... g (float[n,m] X) => (float[m,n] Z) { Y = Relu(X)  Z = Transpose(Y) }'''
    >>> program = TorchProgram(text, {"X": np.float32([[-1, 2]])})
    >>> program.run(), program.calls, program.nodes
    ([tensor([[0.],
            [2.]])], 1, 2)
    """

    def __init__(
        self,
        model: ModelLike,
        feeds: Mapping[str, Any],
        device: Provider | str = "cpu",
        *,
        tf32: bool = False,
    ) -> None:
        evaluator = Evaluator(model, sources=("torch", "reference"), device=device, tf32=tf32)
        plan, checker, context = parts(evaluator)
        self.names = plan.outputs
        self.nodes = len(plan.steps)
        self.synchronize: Callable[[], object] | None = None
        if context.memory.device.on_cuda:
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = tf32
            self.synchronize = torch.cuda.synchronize
        given = checker.take(feeds)
        with torch.inference_mode():
            for_kernels = _prepare(plan, given)
            results = plan.compute(plan.outputs, plan.start(given))
        copied = _views(results, [*given, *plan.constants.values()])
        self.run = _runner(plan, given, for_kernels, copied)
        self._copies = sum(copied)

    @functools.cached_property
    def calls(self) -> int:
        """Count of the functions of torch that compute, not of views nor of our copies."""
        with torch.inference_mode(), _Counter() as counter:
            self.run()
        return int(counter.count) - self._copies


def _prepare(plan: Plan, given: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Run each node once and choose its kernel; return the inputs of each."""
    values = plan.start(given)
    taken = []
    for step in plan.steps:
        inputs = step.take(values)
        result = step.apply(inputs)
        direct = _direct(step, inputs, result)
        if direct is None and step.used != "torch":
            raise ModelError(f"torch has no kernel for {step.node.operator} here")
        step.kernel = direct or step.kernel
        step.store(values, result)
        taken.append(inputs)
    return taken


def _direct(step: NodeStep, inputs: tuple[Any, ...], expected: Any) -> Callable[..., Any] | None:
    """Return the function that torch has for a node, if it gives the same here."""
    make = find_operator(step.node.op_type, step.node.domain).stand_in
    if make is None:
        return None
    try:
        function = make(*inputs, **step.node.attributes)
        got = function(*inputs)
    except Exception:  # noqa: BLE001 - it was written for other inputs
        return None
    pair = _flat(got), _flat(expected)
    agrees = len(pair[0]) == len(pair[1]) and all(map(_agree, *pair))
    return function if agrees else None


def _agree(got: Tensor, expected: Tensor) -> bool:
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    if not got.is_floating_point():
        return torch.equal(got, expected)
    # They add, or interpolate, in another order.
    close = 64 * torch.finfo(got.dtype).eps
    most = float(expected.abs().nan_to_num(posinf=0).max())
    return torch.allclose(got, expected, rtol=close, atol=close * most, equal_nan=True)


def _views(results: Sequence[Any], others: Sequence[Any]) -> list[bool]:
    """Find the results that share memory with what was there, or that are not contiguous."""
    seen = {*map(_memory_of, _flat(list(others)))}
    views = []
    for result in results:
        place = _memory_of(result)
        views.append(place in seen or not result.is_contiguous())
        seen.add(place)
    return views


def _runner(
    plan: Plan, given: Sequence[Any], taken: Sequence[tuple[Any, ...]], copied: Sequence[bool]
) -> Callable[[], list[Tensor]]:
    """Make the function that is measured, which calls little more than the kernels."""

    def walk() -> list[Tensor]:
        return plan.compute(plan.outputs, plan.start(given))

    def call() -> list[Tensor]:
        result = kernel(*inputs)
        return [result] if type(result) is Tensor else result

    if len(plan.steps) == 1 and plan.outputs == tuple(plan.steps[0].node.proto.output):
        kernel, inputs, run = plan.steps[0].kernel, taken[0], call
    else:
        run = walk
    if not any(copied):
        return run
    contiguous = torch.contiguous_format
    return lambda: [
        result.clone(memory_format=contiguous) if copy else result
        for result, copy in zip(run(), copied, strict=False)
    ]


class _Counter(TorchFunctionMode):
    """Counts the calls whose result has a memory of its own."""

    count: int = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        _types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {*map(_memory_of, _flat([args, *(kwargs or {}).values()]))}
        self.count += any(_memory_of(made) not in known for made in _flat([result]))
        return result


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _flat(values: Any) -> list[Tensor]:
    """List the tensors of nested sequences."""
    if isinstance(values, Tensor):
        return [values]
    nested = values if isinstance(values, list | tuple) else ()
    return [tensor for value in nested for tensor in _flat(value)]
