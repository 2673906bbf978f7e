"""Run the script of a page as a program, in a process of its own."""

import faulthandler
import io
import runpy
import sys

__all__ = ["main"]


def main(script: str, *arguments: str) -> None:
    """Run a script.

    Parameters
    ----------
    script : path
        Script of the page. Its folder is not searched for modules.
    *arguments : str
        Its command line.
    """
    # What was written before a crash is kept, and a crash says where.
    faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    sys.argv[:] = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
