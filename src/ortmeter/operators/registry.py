"""The table of operators, how a family fills it, and what a kernel refuses.

An operator is declared in the file of its family, ``normalization.py`` for LayerNormalization.
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ortmeter.errors import RefusedError
from ortmeter.operators.counts import Count
from ortmeter.operators.descriptions import describe
from ortmeter.operators.roundings import Bound

Kernel: TypeAlias = Callable[..., Any]  # takes the inputs of a node, returns one output or a tuple
Function = TypeVar("Function", bound=Callable[..., Any])

#: Domain of the operators that ONNX Runtime adds to those of ONNX.
MICROSOFT = "com.microsoft"
#: Domain of the operators on the blocked layouts of its convolutions.
NCHWC = "com.microsoft.nchwc"

_FAMILIES = (
    *("elementwise", "movement", "reductions", "products", "convolution", "normalization"),
    *("attention", "quantization", "recurrent", "images", "learning"),
)


@dataclass(slots=True)
class Operator:
    """What is known of an operator. What is not known is empty.

    Parameters
    ----------
    name, domain : str
        Its name, and its domain: empty for the standard one.
    kind : str
        One of :data:`~ortmeter.operators.kinds.KINDS`.
    cost : callable, optional
        Operations of a node, see :func:`~ortmeter.operators.costs.node_cost`.
    reads : {"all", "selection", "nothing"}
        What it reads of its first input; a view reads and writes nothing.
    bound : callable, optional
        Largest rounding error of each element, see
        :func:`~ortmeter.observatory.bounds.error_bounds`.
    is_exact : bool
        It moves elements, chooses one, or computes without rounding.
    is_quantized : bool
        Its integers are rounded: another one may be right.
    is_random : bool
        It draws numbers.
    cpu_types : str
        Real element types of the kernel that ONNX Runtime has on CPU, all when empty.
    definition : callable, optional
        Its definition in float64, for those that ONNX lacks: takes arrays in the order of the
        operator and its attributes by name, returns the first outputs. What no case needs is left
        out: an unknown attribute is an error.
    stand_in : callable, optional
        Takes what a kernel takes and returns a function of torch for these inputs. A kernel
        follows ONNX for every input; this may not, and stands in where it gives the same outputs.
    kernels : dict of int to callable
        On tensors of torch, by the first opset of each: takes the inputs of a node, its attributes
        by name.

    Examples
    --------
    >>> from ortmeter.operators import find_operator
    >>> relu = find_operator("Relu")
    >>> relu.kind, relu.is_exact, list(relu.kernels)
    ('elementwise', True, [6])
    """

    name: str
    domain: str = ""
    kind: str = "other"
    cost: Count | None = None
    reads: str = "all"
    bound: Bound | None = None
    is_exact: bool = False
    is_quantized: bool = False
    is_random: bool = False
    cpu_types: str = ""
    definition: Kernel | None = None
    stand_in: Callable[..., Kernel] | None = None
    kernels: dict[int, Kernel] = field(default_factory=dict)


_ENTRIES: dict[tuple[str, str], Operator] = {}


def family(kind: str, **shared: Any) -> Callable[..., None]:
    """Return what declares the operators of a kind: ``declare("Conv LpPool", bound=...)``."""

    def declare(names: str, **facets: Any) -> None:
        for name in names.split():
            operator = Operator(name, **{"kind": kind, **shared, **facets})
            if _ENTRIES.setdefault((operator.domain, name), operator) is not operator:
                raise ValueError(f"{operator.domain}.{name} is declared twice")

    return declare


def kernel(op_type: str, *, since: int = 1) -> Callable[[Function], Function]:
    """Register a function as the torch kernel of an operator from an opset on; decorator.

    A parameter that is an attribute in old opsets and an input in new ones is not keyword-only.
    """

    def add(function: Function) -> Function:
        register(op_type, since, guard(op_type, function))
        return function

    return add


def register(op_type: str, since: int, function: Kernel) -> None:
    _ENTRIES["", op_type].kernels[since] = function


def _set(facet: str, domain: str, op_type: str) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        setattr(_ENTRIES[domain, op_type], facet, function)
        return function

    return add


# Decorators, see the fields of an operator: ``@stand_in("Gather")``.
stand_in = functools.partial(_set, "stand_in", "")
definition = functools.partial(_set, "definition", MICROSOFT)


def maker(op_type: str) -> Callable[[Function], Function]:
    """Register what makes a function of torch for some inputs, which is the kernel as well."""

    def add(make: Function) -> Function:
        @functools.wraps(make)
        def run(*inputs: Any, **attributes: Any) -> Any:
            return make(*inputs, **attributes)(*inputs)

        kernel(op_type)(run)
        return stand_in(op_type)(make)

    return add


@functools.cache
def _every_entry() -> Mapping[tuple[str, str], Operator]:
    for name in _FAMILIES:
        importlib.import_module(f"ortmeter.operators.{name}")
    return _ENTRIES


def known_operators() -> list[Operator]:
    """List the operators, by domain and name.

    Examples
    --------
    >>> from ortmeter.operators import known_operators
    >>> known_operators()[0].name
    'Abs'
    """
    return [entry for _, entry in sorted(_every_entry().items())]


def find_operator(op_type: str, domain: str = "") -> Operator:
    """Find an operator.

    Parameters
    ----------
    op_type, domain : str
        Its name and its domain.

    Returns
    -------
    Operator
        An empty one when nothing is known of it.

    Examples
    --------
    >>> from ortmeter.operators import find_operator
    >>> find_operator("FusedConv", "com.microsoft").kind
    'convolution'
    """
    domain = "" if domain == "ai.onnx" else domain
    return _every_entry().get((domain, op_type)) or Operator(op_type, domain)


def find_kernel(domain: str, op_type: str, opset: int) -> Kernel | None:
    """Find the torch kernel of an operator.

    Parameters
    ----------
    domain, op_type : str
        The operator.
    opset : int
        Version of its domain in the model.

    Returns
    -------
    callable or None
        ``kernel(*inputs, **attributes)``; None when none has the semantics of this opset.

    Examples
    --------
    >>> from ortmeter.operators import find_kernel
    >>> find_kernel("", "Add", 6) is None
    True
    """
    kernels = find_operator(op_type, domain).kernels
    return kernels.get(max((since for since in kernels if since <= opset), default=0))


def guard(op_type: str, function: Kernel) -> Kernel:
    """Turn the refusals of torch into `RefusedError`; what is wrong with a model stays."""

    @functools.wraps(function)
    def guarded(*inputs: Any, **attributes: Any) -> Any:
        try:
            return function(*inputs, **attributes)
        except RefusedError:
            raise
        except (RuntimeError, TypeError, AttributeError) as cause:
            if not _is_refusal(cause, (*inputs, *attributes.values())):
                raise
            raise RefusedError(
                f"{op_type}: given {describe(inputs)} and {attributes}; accepted: what torch "
                f"implements ({cause})"
            ) from cause

    return guarded


def _is_refusal(cause: Exception, given: tuple[Any, ...]) -> bool:
    if isinstance(cause, RuntimeError):
        return isinstance(cause, NotImplementedError)
    return any(isinstance(x, np.ndarray) for x in given)
