"""Kernels compiled at run time: a chain of element-wise operators becomes one of them.

A chain is found in the graph (``chains``) and written as an expression whose text does not depend
on the graph (``expression``). Expressions are written in C++ or CUDA (``sources``, ``native/``),
compiled once and kept in the user's cache folder (``compiler``), tried in a child process beside
the operators that they replace (``library``, ``trial``), and registered as custom operators where
they are faster (``choice``).

Nothing is imported here: the child process starts without torch.
"""
