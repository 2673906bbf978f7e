"""Kernels compiled at run time: a chain of element-wise operators becomes one of them.

A chain is found in the graph (``chains``), written as an expression whose text does not depend on
the graph (``steps``, ``operators``, ``expression``), which is written in C++ or CUDA (``sources``,
``native/``), compiled once and kept in the user's cache folder (``compiler``), tried in a child
process beside the operators that it replaces (``trial``), and registered as a custom operator.
"""

from ortmeter.backend.kernels.fusion import ELEMENT_WISE, ChainRule, FusedChains

__all__ = ["ELEMENT_WISE", "ChainRule", "FusedChains"]
