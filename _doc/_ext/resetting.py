"""Give each page the state that a fresh process would have.

All pages run in one process, one after the other.
"""

import contextlib
import functools
import gc
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
from sphinx.util import logging

logger = logging.getLogger(__name__)

#: What is undone after a page.
_undone = contextlib.ExitStack()


def reset(_gallery_conf: dict[str, Any], _page: str | None, when: str) -> None:
    """Reset what a page may have changed; sphinx-gallery calls it before and after each page."""
    _undone.close()
    gc.enable()
    np.random.seed(0)  # noqa: NPY002 - the global generator is what is reset
    if "torch" in sys.modules:
        _reset_torch(sys.modules["torch"])
    if when == "before":
        _undone.enter_context(warnings.catch_warnings())
        # sphinx-gallery replaces `showwarning` around each cell, not the function that it calls.
        _undone.callback(setattr, warnings, "formatwarning", warnings.formatwarning)
        warnings.formatwarning = report_warning


def report_warning(message: Warning | str, category: type[Warning], *_: object) -> str:
    """Send a warning of a page to the log of the build, and nothing to the page.

    sphinx-gallery captures stderr: a warning would be published with the path of a file of the
    machine. In the log it fails a build made with ``-W``.
    """
    logger.warning("%s raised by a page: %s", category.__name__, message, type="ortmeter")
    return ""


def _reset_torch(torch: Any) -> None:
    torch.set_grad_enabled(True)
    torch.set_num_threads(_default_torch_threads())
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # noqa: SLF001 - torch documents this name


@functools.cache
def _default_torch_threads() -> int:
    """Ask a fresh process: in this one, a page may already have changed the number."""
    command = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    return int(subprocess.check_output(command, text=True))  # noqa: S603 - fixed command
