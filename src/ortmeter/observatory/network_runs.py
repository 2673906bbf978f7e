"""Run the models of :mod:`~ortmeter.observatory.networks` on the library that they come from."""

import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from ortmeter.backend.errors import quiet
from ortmeter.observatory.networks import NETWORKS, make_inputs, make_network
from ortmeter.runtime.providers import Provider
from ortmeter.timing.measurement import Candidate, Recipe

__all__ = ["inductor_obstacle", "network_candidate", "run_network", "use_torch"]


def run_network(
    name: str, inputs: Mapping[str, np.ndarray], provider: str = "cpu"
) -> list[np.ndarray]:
    """Run a model on the library that it comes from.

    Parameters
    ----------
    name : str
        One of :data:`NETWORKS`.
    inputs : mapping of str to array
        Its inputs, see :func:`make_inputs`. With float64 ones, torch computes in float64.
    provider : str
        Where torch runs; scikit-learn runs on the CPU.

    Returns
    -------
    list of array
        Its outputs.

    Examples
    --------
    >>> [y.shape for y in run_network("forest", make_inputs("forest", 3))]
    [(3, 1)]
    """
    if NETWORKS[name].library != "torch":
        return [make_network(name).predict(*inputs.values())[:, None]]
    found = use_torch(name, inputs.values(), provider=provider)()
    return [value.cpu().numpy() for value in (found if isinstance(found, tuple) else (found,))]


def use_torch(
    name: str, tensors: Iterable[Any], *, provider: str = "cpu", compiled: bool = False
) -> Callable[[], Any]:
    """Prepare a call of a model on torch.

    Parameters
    ----------
    name : str
        One of :data:`NETWORKS` that torch runs.
    tensors : iterable of array
        Its inputs; float64 ones run the model in float64.
    provider : str
        ``cpu``, ``cuda`` or ``cuda:1``. On CUDA, products do not use TF32.
    compiled : bool
        Whether inductor compiles the model, for the shapes of these inputs.

    Returns
    -------
    callable
        Runs the model in inference mode, without waiting for the device.

    Examples
    --------
    >>> from ortmeter.observatory.networks import make_inputs
    >>> use_torch("CNN", make_inputs("CNN", 2).values())().shape
    torch.Size([2, 10])
    """
    device = torch.device(provider)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    given = [torch.as_tensor(value).to(device) for value in tensors]
    model = copy.deepcopy(make_network(name)).to(device, given[0].dtype)
    run = torch.compile(model, dynamic=False) if compiled else model

    def call() -> Any:
        with torch.inference_mode():
            return run(*given)

    return call


def network_candidate(
    name: str, batch: int, *, provider: str = "cpu", threads: int = 1, compiled: bool = False
) -> Candidate:
    """Make a candidate that fresh processes build: a model on the library that it comes from.

    Parameters
    ----------
    name : str
        One of :data:`NETWORKS`.
    batch : int
        Rows of a call.
    provider : str
        Where torch runs; scikit-learn runs on the CPU.
    threads : int
        Threads of torch, for the whole process, or of scikit-learn.
    compiled : bool
        Whether inductor compiles the model.

    Returns
    -------
    Candidate
        For :func:`~ortmeter.timing.measure`, with a recipe. The model is built at the first call.

    Examples
    --------
    >>> network_candidate("forest", 1).function()
    """
    arguments: dict[str, Any] = {"name": name, "batch": batch, "threads": threads}
    arguments |= {"provider": str(Provider.parse(provider)), "compiled": compiled}
    recipe = Recipe(f"{__name__}:{start_network.__name__}", arguments)

    @functools.cache
    def started() -> Callable[[], Any]:
        return start_network(**arguments)

    def call() -> None:
        started()()

    return Candidate(call, recipe=lambda _folder: recipe)


def start_network(
    name: str, batch: int, *, provider: str, threads: int, compiled: bool
) -> Callable[[], Any]:
    """Prepare a call in a fresh process, from what its recipe wrote."""
    inputs = make_inputs(name, batch)
    if NETWORKS[name].library == "torch":
        torch.set_num_threads(threads)
        with quiet():
            call = use_torch(name, inputs.values(), provider=provider, compiled=compiled)
            call()  # inductor compiles at the first call
        return call
    forest = make_network(name).set_params(n_jobs=threads)
    return functools.partial(forest.predict, *inputs.values())


def inductor_obstacle(provider: str = "cpu") -> str:
    """Say why inductor cannot compile here.

    Parameters
    ----------
    provider : str
        ``cpu``, ``cuda`` or ``cuda:1``.

    Returns
    -------
    str
        Empty when its compiler is there: of C++ on a CPU, Triton on CUDA.

    Examples
    --------
    >>> inductor_obstacle("cpu") in ("", "no C++ compiler")
    True
    """
    if Provider.parse(provider).name == "cuda":
        from torch.utils._triton import has_triton

        return "" if has_triton() else "no Triton"
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return "no C++ compiler"
    return ""
