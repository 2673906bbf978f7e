"""Models of machine learning: trees, linear models, scalers."""

from collections.abc import Iterable

import numpy as np

from ortmeter.observatory.case import call


def _trees(op: str, trees: int, depth: int, *, classes: int = 1) -> str:
    """Write complete binary trees, which compare one of 20 features with a number at each node."""
    rng = np.random.default_rng(0)
    size = 2 ** (depth + 1) - 1
    nodes, rank = np.tile(np.arange(size), trees), np.arange(trees)
    is_inner = nodes < size // 2
    child = np.where(is_inner, 2 * nodes + 1, 0)
    leaves = nodes[~is_inner]
    kind = "class" if classes > 1 else "target"
    lists: dict[str, Iterable[object]] = {
        "nodes_treeids": rank.repeat(size),
        "nodes_nodeids": nodes,
        "nodes_modes": np.where(is_inner, '"BRANCH_LEQ"', '"LEAF"'),
        "nodes_featureids": rng.integers(20, size=len(nodes)),
        "nodes_values": rng.normal(size=len(nodes)).round(3),
        "nodes_truenodeids": child,
        "nodes_falsenodeids": np.where(is_inner, child + 1, 0),
        f"{kind}_treeids": rank.repeat(len(leaves) // trees),
        f"{kind}_nodeids": leaves,
        f"{kind}_ids": rng.integers(classes, size=len(leaves)),
        f"{kind}_weights": rng.normal(size=len(leaves)).round(3),
    }
    attributes = ", ".join(f"{name} = {_list(values)}" for name, values in lists.items())
    if classes > 1:
        return f"ai.onnx.ml.{op}<{attributes}, classlabels_int64s = [0,1,2]>"
    return f"ai.onnx.ml.{op}<{attributes}, n_targets = 1>"


def _list(values: Iterable[object]) -> str:
    return f"[{','.join(map(str, values))}]"


_COEFFICIENTS = np.random.default_rng(0).normal(size=3 * 20).round(3)
_REGRESSOR = _trees("TreeEnsembleRegressor", 100, 6)
CASES = (
    call(_REGRESSOR, "T[1,20] X", "100 trees one row", outputs="T[1,1] Y"),
    call(_REGRESSOR, "T[256,20] X", "100 trees 256 rows", outputs="T[256,1] Y"),
    call(
        _trees("TreeEnsembleClassifier", 50, 6, classes=3), "T[256,20] X", "50 trees 256 rows",
        outputs="i64[256] Y, T[256,3] P",
    ),
    call(
        f"ai.onnx.ml.Scaler<offset = {_list(_COEFFICIENTS[:20])}, "
        f"scale = {_list(_COEFFICIENTS[20:40])}>",
        "T[1024,20] X",
    ),
    call('ai.onnx.ml.Normalizer<norm = "L2">', "T[1024,20] X", "L2"),
    call(
        f"ai.onnx.ml.LinearClassifier<coefficients = {_list(_COEFFICIENTS)}, "
        'intercepts = [0.1,-0.2,0.3], classlabels_ints = [0,1,2], post_transform = "SOFTMAX">',
        "T[1024,20] X", outputs="i64 Y, T P",
    ),
)  # fmt: skip
