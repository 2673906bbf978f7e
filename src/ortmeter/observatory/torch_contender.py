"""Torch as a contender: the same cases on its functions, in processes of its own."""

from importlib.metadata import version
from pathlib import Path

from ortmeter.errors import OrtMeterError
from ortmeter.observatory.case import Case
from ortmeter.observatory.matrix import Contender
from ortmeter.optional import import_optional
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.releases import INSTALLED, parse_release


def torch_contender(provider: Provider | None = None) -> Contender:
    """Return what runs cases on the torch of this environment.

    Parameters
    ----------
    provider : Provider, optional
        Where torch runs, by default the provider of each case.

    Returns
    -------
    Contender
        Its times are those of calls of torch on tensors made once, in inference mode. Where a
        result is a view, it is copied: ONNX Runtime writes its outputs. On CUDA, each run waits
        for the device.

    Raises
    ------
    MissingDependencyError
        torch is not installed.

    Examples
    --------
    >>> torch_contender().name.split()[0]
    'torch'
    """
    import_optional("torch", "torch")
    name = f"torch {version('torch').partition('+')[0]}"
    script = Path(__file__).with_name("torch_child.py")
    return Contender(name, parse_release(INSTALLED), script, provider)


def count_extra_calls(case: Case) -> int:
    """Count the functions of torch that compute in a case, beyond one for each of its nodes.

    Parameters
    ----------
    case : Case
        It runs once, on the CPU.

    Returns
    -------
    int
        Zero or less when torch has a function for each node. Above zero, several calls emulate an
        operator: torch users may have a faster way. -1 when torch has no kernel.

    Examples
    --------
    >>> count_extra_calls(Case("Relu", "Y = Relu(X)", "T[8] X"))
    0
    >>> count_extra_calls(Case("ReduceSumSquare", "Y = ReduceSumSquare(X)", "T[8] X"))
    1
    """
    import_optional("torch", "torch")
    from ortmeter.observatory.torch_program import TorchProgram

    try:
        program = TorchProgram(case.model(), case.feeds())
    except OrtMeterError:
        return -1
    return program.calls - program.nodes
