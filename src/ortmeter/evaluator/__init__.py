"""Run an ONNX graph node by node with replaceable kernels.

``evaluation`` has the evaluator. ``compiler`` turns graphs and functions into a ``plan``, a list of
steps over numbered slots, each with the kernels of its ``node``: those of the ``sources``, or what
the user swaps, see ``kernels``. ``values`` converts values between libraries and devices,
``float64`` writes the model that is a reference, ``judges`` asks two evaluations that share no
code.
"""

from ortmeter.evaluator.evaluation import Evaluator
from ortmeter.evaluator.float64 import to_float64
from ortmeter.evaluator.kernels import KNOWN_ERRORS

__all__ = ["KNOWN_ERRORS", "Evaluator", "to_float64"]
