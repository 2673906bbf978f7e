"""Torch as a candidate: the same cases on its functions, in processes of its own."""

from importlib.metadata import version
from pathlib import Path

from ortmeter.errors import OrtMeterError
from ortmeter.evidence import plural
from ortmeter.observatory.case import Case
from ortmeter.observatory.matrix import RuntimeCandidate
from ortmeter.observatory.nodes import NodeCase
from ortmeter.optional import import_optional
from ortmeter.releases.environments import INSTALLED, parse_release
from ortmeter.runtime.providers import Provider

__all__ = ["find_obstacle", "torch_candidate"]


def torch_candidate(provider: Provider | None = None) -> RuntimeCandidate:
    """Return what runs cases on the torch of this environment.

    Parameters
    ----------
    provider : Provider, optional
        Where torch runs, by default the provider of each case.

    Returns
    -------
    RuntimeCandidate
        Its times are those of calls of torch on tensors made once, in inference mode. Where a
        result is a view, it is copied: ONNX Runtime writes its outputs. On CUDA, each run waits
        for the device.

    Raises
    ------
    MissingDependencyError
        torch is not installed.

    Examples
    --------
    >>> torch_candidate().name.split()[0]
    'torch'
    """
    import_optional("torch", "torch")
    name = f"torch {version('torch').partition('+')[0]}"
    script = Path(__file__).with_name("torch_child.py")
    return RuntimeCandidate(name, parse_release(INSTALLED), script, provider)


def find_obstacle(case: Case | NodeCase) -> str:
    """Say why times of torch would not be those of its functions.

    Parameters
    ----------
    case : Case or NodeCase
        It runs once, on the CPU.

    Returns
    -------
    str
        Empty when each node is one function of torch, or a view. Otherwise torch has no kernel, or
        emulates an operator by several calls: its users may have a faster way.

    Examples
    --------
    >>> find_obstacle(Case("Relu", "Y = Relu(X)", "T[8] X"))
    ''
    >>> find_obstacle(Case("ReduceSumSquare", "Y = ReduceSumSquare(X)", "T[8] X"))
    'emulated: 2 calls for 1 node'
    """
    import_optional("torch", "torch")
    from ortmeter.observatory.torch_program import TorchProgram

    try:
        program = TorchProgram(case.model(), case.feeds())
    except OrtMeterError:
        return "no kernel"
    if program.calls <= program.nodes:
        return ""
    return f"emulated: {program.calls} calls for {plural(program.nodes, 'node')}"
