"""Losses of classification."""

from typing import Any

from torch import Tensor
from torch.nn import functional

from ortmeter.evaluator.torch_kernels._registry import kernel

__all__ = ["negative_log_likelihood_loss", "softmax_cross_entropy_loss"]

# The index that torch ignores by default is no class of ONNX either.
_NO_CLASS = -100


@kernel("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = _NO_CLASS,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log-probability of the target classes."""
    return functional.nll_loss(
        x, target.long(), weight, ignore_index=ignore_index, reduction=reduction
    )


@kernel("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int = _NO_CLASS,
    reduction: str = "mean",
    n_outputs: int = 1,
) -> Any:
    """Cross entropy of scores and labels, and the log-probabilities if asked for."""
    log_prob = functional.log_softmax(scores, 1)
    loss = negative_log_likelihood_loss(
        log_prob, labels, weights, ignore_index=ignore_index, reduction=reduction
    )
    return (loss, log_prob) if n_outputs > 1 else loss
