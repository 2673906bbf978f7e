"""How far a computation in finite precision may be from the exact result, known before it runs.

``matmul`` is about matrix products, ``reduction`` about sums and means, ``normalization`` about
layer normalizations.
"""

from ortmeter.discrepancy.bounds.matmul import matmul_error_bound
from ortmeter.discrepancy.bounds.normalization import layer_norm_error_bound
from ortmeter.discrepancy.bounds.reduction import mean_error_bound, sum_error_bound

__all__ = [
    "layer_norm_error_bound",
    "matmul_error_bound",
    "mean_error_bound",
    "sum_error_bound",
]
