"""What the package knows of each operator, in one entry per name and domain.

Each family of operators has a file, where an operator is declared with what it costs, its kind and
its rounding errors, above its kernels on torch. A file is read, and torch is imported, by the first
question that needs them. ``tensors`` has what kernels share, ``counts`` the usual costs,
``roundings`` the usual bounds.
"""

from ortmeter.operators.registry import Operator, find_kernel, find_operator, known_operators

__all__ = ["Operator", "find_kernel", "find_operator", "known_operators"]
