"""Trees."""

from collections.abc import Iterable

import numpy as np

from ortmeter.observatory.case import call


def _trees(trees: int, depth: int) -> str:
    """Write complete binary trees, which compare one of 20 features with a number at each node."""
    rng = np.random.default_rng(0)
    size = 2 ** (depth + 1) - 1
    nodes, rank = np.tile(np.arange(size), trees), np.arange(trees)
    is_inner = nodes < size // 2
    child = np.where(is_inner, 2 * nodes + 1, 0)
    leaves = nodes[~is_inner]
    lists: dict[str, Iterable[object]] = {
        "nodes_treeids": rank.repeat(size),
        "nodes_nodeids": nodes,
        "nodes_modes": np.where(is_inner, '"BRANCH_LEQ"', '"LEAF"'),
        "nodes_featureids": rng.integers(20, size=len(nodes)),
        "nodes_values": rng.normal(size=len(nodes)).round(3),
        "nodes_truenodeids": child,
        "nodes_falsenodeids": np.where(is_inner, child + 1, 0),
        "target_treeids": rank.repeat(len(leaves) // trees),
        "target_nodeids": leaves,
        "target_ids": rng.integers(1, size=len(leaves)),
        "target_weights": rng.normal(size=len(leaves)).round(3),
    }
    attributes = ", ".join(f"{name} = [{','.join(map(str, v))}]" for name, v in lists.items())
    return f"ai.onnx.ml.TreeEnsembleRegressor<{attributes}, n_targets = 1>"


_REGRESSOR = _trees(100, 6)
CASES = (
    call(_REGRESSOR, "T[1,20] X", "100 trees one row", outputs="T[1,1] Y"),
    call(_REGRESSOR, "T[256,20] X", "100 trees 256 rows", outputs="T[256,1] Y"),
)
