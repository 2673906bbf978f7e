"""How much memory the inputs of a model may take."""

import os

__all__ = ["half_of_memory"]


def half_of_memory() -> int:
    """Return half of the memory of the machine in bytes, 2 GiB where the system does not tell."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 2**31
