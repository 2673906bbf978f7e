"""One thread: the tensors of these tests are small, and threads only wait for each other."""

from kernel_checks import one_thread

__all__ = ["one_thread"]
