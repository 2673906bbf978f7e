"""Rewriting rules of the optimisation levels, in the order they are applied.

Each rule may feed those that follow. It has the fusions that pay on each provider, and the operator
of which it needs a kernel. `What each rule brings on a CPU` was measured by
``_benchmarks/backend_rules.py``: what brings nothing there is not here.
"""

from types import MappingProxyType

from ortmeter.backend.rules.attention import CausalMask, EagerAttention
from ortmeter.backend.rules.group_query import GroupQuery
from ortmeter.backend.rules.heads import AttentionBeforeSplit, RepeatedHeads, RotaryBeforeSplit
from ortmeter.backend.rules.layout import SameShape, TransposedWeight
from ortmeter.backend.rules.normalization import RootMeanSquare
from ortmeter.backend.rules.rotary import HalfTable, Rotary
from ortmeter.backend.rules.rule import HALF, MICROSOFT, Fusion, Refusal, Rule

__all__ = ["DEFAULT", "ONNXRUNTIME", "RULES", "Fusion", "Refusal", "Rule"]


def _everywhere(name: str, *fusions: Fusion, kernel: str = "") -> Rule:
    return Rule(name, {"cpu": fusions, "cuda": fusions}, kernel)


#: Patterns that become operators of the ONNX standard.
DEFAULT = (
    _everywhere("Flattening", SameShape()),
    _everywhere(
        "RMSNorm",
        RootMeanSquare(widened=False),
        RootMeanSquare(widened=True),
        kernel="RMSNormalization",
    ),
    _everywhere("HalfTable", *map(HalfTable, ("Cos", "Sin", "Mul", "Cast"))),
    _everywhere("Rotary", Rotary(), kernel="RotaryEmbedding"),
    _everywhere(
        "EagerAttention",
        EagerAttention(widened=False),
        EagerAttention(widened=True),
        kernel="Attention",
    ),
    _everywhere("RotaryBeforeSplit", RotaryBeforeSplit(), kernel="RotaryEmbedding"),
    Rule(
        "RepeatedHeads",
        {"cpu": (RepeatedHeads(),), "cuda": (RepeatedHeads(HALF),)},
        kernel="Attention",
    ),
    _everywhere("AttentionBeforeSplit", AttentionBeforeSplit(), kernel="Attention"),
    _everywhere("CausalMask", CausalMask(), kernel="Attention"),
)

#: Patterns that become kernels of the domain ``com.microsoft``.
ONNXRUNTIME = (
    _everywhere("TransposedWeight", TransposedWeight(), kernel=f"{MICROSOFT}.FusedMatMul"),
    Rule(
        "GroupQuery",
        {"cpu": (GroupQuery(shortest=2048),), "cuda": (GroupQuery(),)},
        kernel=f"{MICROSOFT}.GroupQueryAttention",
    ),
)

#: Every rule, by name.
RULES = MappingProxyType({rule.name: rule for rule in (*DEFAULT, *ONNXRUNTIME)})
