"""Rewriting rules of the optimisation levels, in the order they are applied.

Each rule may feed those that follow. It says where it holds: the element types that the kernel of
the replacement has on each provider, and the first opset that has the operator it writes.
"""

from types import MappingProxyType

import onnx_ir as ir

from ortmeter.backend.rules.attention import CausalMask, EagerAttention, WindowMask
from ortmeter.backend.rules.group_query import CappedGroupQuery, GroupQuery, PackedGroupQuery
from ortmeter.backend.rules.heads import (
    AttentionBeforeSplit,
    NormalizedHeads,
    RepeatedHeads,
    RotaryBeforeSplit,
    ScaledQueries,
)
from ortmeter.backend.rules.layout import (
    FlatProduct,
    FlatRows,
    FlatSum,
    SameShape,
    SlicesToSplit,
)
from ortmeter.backend.rules.normalization import (
    BiasGelu,
    RootMeanSquare,
    Silu,
    SkipNormalization,
    TanhGelu,
)
from ortmeter.backend.rules.products import MergedProducts, TransposedWeight
from ortmeter.backend.rules.rotary import HalfTable, PartialRotary, Rotary
from ortmeter.backend.rules.rule import BF16, F16, F32, F64, Fusion, Refusal, Rule

__all__ = ["DEFAULT", "ONNXRUNTIME", "RULES", "Fusion", "Refusal", "Rule"]

_ALL = frozenset({F32, F64, F16, BF16})
#: Element types by provider: any; those of the kernels of attention and normalizations.
_ANY = {"cpu": _ALL, "cuda": _ALL}
_NOT_64 = {"cpu": frozenset({F32, F16}), "cuda": frozenset({F32, F16, BF16})}
_TRUTH = frozenset({ir.DataType.BOOL})
_GROUP_QUERY = {"cpu": frozenset({F32, F16}), "cuda": frozenset({F16, BF16})}
# On CPU ONNX Runtime does as much when it creates the session.
_CUDA = frozenset({"cuda"})

#: Patterns that become operators of the ONNX standard.
DEFAULT = (
    Rule("SameShape", (SameShape(),), _ANY),
    Rule(
        "Flattening",
        (
            FlatProduct(),
            *map(FlatRows, ("LayerNormalization", "Relu", "Gelu", "Tanh", "Sigmoid")),
            FlatSum(),
            SameShape(),
        ),
        _ANY,
    ),
    # not 64 bits: epsilon, an attribute, has 32 bits
    Rule("RMSNorm", tuple(RootMeanSquare(widened=w) for w in (False, True)), _NOT_64, opset=23),
    Rule("HalfTable", tuple(map(HalfTable, ("Cos", "Sin", "Mul", "Cast"))), _ANY),
    Rule("Rotary", (Rotary(),), _NOT_64, opset=23),
    Rule("PartialRotary", (PartialRotary(),), _NOT_64, opset=23),
    Rule(
        "EagerAttention", tuple(EagerAttention(widened=w) for w in (False, True)), _NOT_64, opset=23
    ),
    Rule(
        "NormalizedHeads",
        (
            NormalizedHeads("RMSNormalization", shifted=False),
            NormalizedHeads("LayerNormalization", shifted=True),
        ),
        _NOT_64,
        opset=23,
    ),
    Rule("RotaryBeforeSplit", (RotaryBeforeSplit(),), _NOT_64, opset=23),
    Rule("RepeatedHeads", (RepeatedHeads(),), _NOT_64, opset=23),
    Rule("AttentionBeforeSplit", (AttentionBeforeSplit(),), _NOT_64, opset=23),
    Rule("ScaledQueries", (ScaledQueries(),), _NOT_64, opset=23),
    Rule("CausalMask", (CausalMask(),), _NOT_64, opset=23),
    Rule(
        "WindowMask",
        tuple(map(WindowMask, ("And", "Where"))),
        {name: types | _TRUTH for name, types in _NOT_64.items()},
        opset=23,
    ),
    Rule("TanhGelu", (TanhGelu(),), {"cpu": frozenset({F32}), "cuda": _ALL - {BF16}}, opset=20),
    Rule("SlicesToSplit", (SlicesToSplit(),), _ANY),
)

#: Patterns that become kernels of the domain ``com.microsoft``.
ONNXRUNTIME = (
    Rule(
        "SkipRMSNorm",
        tuple(SkipNormalization("RMSNormalization", biased=b) for b in (True, False)),
        _NOT_64,
    ),
    Rule(
        "SkipLayerNorm",
        tuple(SkipNormalization("LayerNormalization", biased=b) for b in (True, False)),
        _NOT_64,
    ),
    Rule("BiasGelu", (BiasGelu("none"),), {"cuda": _ALL}, unmeasured=_CUDA),
    Rule("BiasFastGelu", (BiasGelu("tanh"),), {"cuda": _ALL - {F64}}, unmeasured=_CUDA),
    Rule("Silu", tuple(Silu(scaled=s) for s in (True, False)), {"cuda": _ALL}, unmeasured=_CUDA),
    Rule("TransposedWeight", (TransposedWeight(),), {"cpu": frozenset({F32, F64}), "cuda": _ALL}),
    # Measured on CPU for 1 to 512 rows: one product takes as long as several.
    Rule("MergedProducts", (MergedProducts(),), {"cuda": _ALL}),
    Rule("GroupQuery", (GroupQuery(),), _GROUP_QUERY, opset=23),
    Rule("CappedGroupQuery", (CappedGroupQuery(),), _GROUP_QUERY, opset=23),
    Rule("PackedGroupQuery", (PackedGroupQuery(),), _GROUP_QUERY),
)

#: Every rule, by name.
RULES = MappingProxyType({rule.name: rule for rule in (*DEFAULT, *ONNXRUNTIME)})
