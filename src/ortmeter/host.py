"""Whose the command line is: the page's, or that of a program that runs the page."""

import sys
from pathlib import Path

__all__ = ["command_line", "in_ipython"]

# Programs that run somebody else's code: what follows their name is theirs.
_HOSTS = {
    *("pytest", "py.test", "_jb_pytest_runner", "unittest"),
    *("sphinx", "sphinx-build"),
    *("ipython", "ipython3", "jupyter", "ipykernel", "ipykernel_launcher"),
    *("colab_kernel_launcher", "spyder_kernels"),
}


def command_line() -> tuple[list[str], bool]:
    """Return the arguments meant for the page, and whether the page is the program.

    Returns
    -------
    arguments : list of str
        Empty when a host runs the page.
    is_program : bool
        Whether the page may exit as a program does: not in a notebook, nor under pytest.
    """
    script = sys.argv[0] if sys.argv else ""
    # runpy renames the program but leaves it the arguments of the program that called it.
    started = sys.orig_argv[-len(sys.argv) :]
    caller = started[0] if started[1:] == sys.argv[1:] else script
    if _is_host(script) or _is_host(caller):
        return [], False
    if in_ipython():
        return (sys.argv[1:] if _is_main(script) else []), False
    return sys.argv[1:], True


def _is_host(program: str) -> bool:
    path = Path(program)
    stem = path.name.removesuffix(".exe").removesuffix(".py")
    return (path.parent.name if stem == "__main__" else stem) in _HOSTS


def in_ipython() -> bool:
    """Tell whether a notebook or an IPython shell runs this code."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _is_main(script: str) -> bool:
    """Tell whether *script* is what runs now, as ``%run`` pretends; a notebook has no file."""
    main = getattr(sys.modules["__main__"], "__file__", None)
    return main is not None and Path(main).resolve() == Path(script).resolve()
