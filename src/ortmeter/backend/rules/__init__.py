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
from ortmeter.backend.rules.rule import HALF, MICROSOFT, Refusal, Rule

__all__ = ["DEFAULT", "ONNXRUNTIME", "RULES", "Refusal", "Rule"]


#: Patterns that become operators of the ONNX standard.
DEFAULT = (
    Rule("Flattening", (SameShape(),)),
    Rule("RMSNorm", (RootMeanSquare(), RootMeanSquare(widened=True)), kernel="RMSNormalization"),
    Rule("HalfTable", tuple(map(HalfTable, ("Cos", "Sin", "Mul", "Cast")))),
    Rule("Rotary", (Rotary(),), kernel="RotaryEmbedding"),
    Rule("EagerAttention", (EagerAttention(), EagerAttention(widened=True)), kernel="Attention"),
    Rule("RotaryBeforeSplit", (RotaryBeforeSplit(),), kernel="RotaryEmbedding"),
    Rule("RepeatedHeads", (RepeatedHeads(),), kernel="Attention", on_cuda=(RepeatedHeads(HALF),)),
    Rule("AttentionBeforeSplit", (AttentionBeforeSplit(),), kernel="Attention"),
    Rule("CausalMask", (CausalMask(),), kernel="Attention"),
)

#: Patterns that become kernels of the domain ``com.microsoft``.
ONNXRUNTIME = (
    Rule("TransposedWeight", (TransposedWeight(),), kernel=f"{MICROSOFT}.FusedMatMul"),
    Rule(
        "GroupQuery",
        (GroupQuery(shortest=2048),),
        kernel=f"{MICROSOFT}.GroupQueryAttention",
        on_cuda=(GroupQuery(),),
    ),
)

#: Every rule, by name.
RULES = MappingProxyType({rule.name: rule for rule in (*DEFAULT, *ONNXRUNTIME)})
