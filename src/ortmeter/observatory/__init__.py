"""Operators one by one: which release of ONNX Runtime is slower, or less accurate, and since when.

A case is a model of one operator with its inputs. The same cases run with several releases, in
turn, in fresh processes; a difference is claimed when two independent passes show it.
"""
