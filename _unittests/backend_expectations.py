"""What the rules must make of the architectures of ``backend_models``, two layers of each."""

from dataclasses import dataclass, field

from ortmeter.backend import LEVELS

#: Operators that a kernel stands for: none is left but those that an architecture declares.
PRIMITIVES = frozenset({
    "Cos", "Erf", "Expand", "Neg", "Pow", "Reciprocal", "ReduceMean", "Sigmoid", "Sin", "Softmax",
    "Sqrt", "Tanh",
})  # fmt: skip


@dataclass(frozen=True)
class Expected:
    """Nodes of a model.

    ``nodes`` are at most so many at each level but ``none``; ``kernels`` and the primitives that
    are ``left`` are exactly so many at the level ``default+onnxruntime``.
    """

    nodes: tuple[int, ...]
    kernels: dict[str, int]
    left: dict[str, int] = field(default_factory=dict)

    def most_nodes(self):
        """The largest number of nodes by level."""
        return dict(zip(list(LEVELS)[1:], self.nodes, strict=True))


_ATTENTION = {"Attention": 2}
_ROTARY = _ATTENTION | {"RotaryEmbedding": 4}
_RMS = {"RMSNormalization": 5}
_LAYER = {"LayerNormalization": 5}
# What ONNX Runtime fuses by itself on CPU is left: x * sigmoid(x), gelu(x + bias), gelu by tanh.
_SILU = {"Sigmoid": 2}
_LLAMA = _ROTARY | _RMS | {"FusedMatMul": 14}
_GEMMA = _ROTARY | _RMS | {"Gelu": 2, "FusedMatMul": 14}
_BERT = _ATTENTION | _LAYER | {"Gelu": 2, "FusedMatMul": 12}
_POOLER = {"Tanh": 1}
_T5 = {"RMSNormalization": 10, "FusedMatMul": 26}

#: By architecture, or by architecture and attention where they differ.
EXPECTED = {
    "llama": Expected((58, 44), _LLAMA, _SILU),
    "llama-gqa": Expected((58, 44), _LLAMA, _SILU),
    "mistral": Expected((62, 48), _LLAMA, _SILU),
    # the choice of the experts, of which softmax is the purpose
    "mixtral": Expected(
        (108, 100),  # TopK sorts NaN last, in five nodes more, as torch does
        _LLAMA | {"FusedMatMul": 8, "MatMul": 4, "Gemm": 2},
        _SILU | {"Softmax": 2, "Expand": 2},
    ),
    # the heads of the queries and of the keys are normalized
    "qwen3": Expected((70, 56), _LLAMA | {"RMSNormalization": 9}, _SILU),
    "phi3": Expected((54, 46), _LLAMA | {"FusedMatMul": 8}, _SILU),
    # what comes out of a layer is normalized before it is added
    "gemma2": Expected(  # capped scores: the kernel is for long sequences
        (99, 85),
        _GEMMA | {"RMSNormalization": 9, "Attention": 0, "MatMul": 4},
        {"Softmax": 2, "Tanh": 2, "Expand": 4},
    ),
    "gemma3": Expected((75, 61), _GEMMA | {"RMSNormalization": 13}),
    "gpt-neox": Expected(
        (64, 56),
        _ROTARY | _LAYER | {"Gelu": 2, "FusedMatMul": 8},
    ),
    "gpt2": Expected((71, 71), _ATTENTION | _LAYER | {"Gemm": 8}, {"Pow": 2, "Tanh": 2}),
    "opt": Expected((59, 51), _ATTENTION | _LAYER | {"Gemm": 4, "FusedMatMul": 8}),
    "bert": Expected((65, 53), _BERT, _POOLER | {"Expand": 2}),
    # a mask that may hide every key of a query is read once more, for all the layers
    "bert-eager": Expected((69, 57), _BERT, _POOLER | {"Expand": 2}),
    # one layer of the encoder, two of the decoder, which have two attentions each
    "t5": Expected((103, 77), _T5 | {"Attention": 5}),
    # two masks are added to the scores of the decoder, one after the other
    "t5-eager": Expected((124, 98), _T5 | {"Attention": 3, "MatMul": 4}, {"Softmax": 2}),
    "bart": Expected(
        (126, 100),
        _BERT | {"Attention": 5, "LayerNormalization": 10, "Gelu": 3, "FusedMatMul": 26},
    ),
    # the convolutions come first
    "whisper-encoder": Expected((56, 44), _BERT | {"Gelu": 4}),
    "dinov2": Expected((58, 46), _BERT),
    "clip-vision": Expected(
        (61, 49), _ATTENTION | {"LayerNormalization": 6, "FusedMatMul": 12}, _SILU
    ),
    # a maximum pool keeps NaN, and -inf where a window has nothing else: five nodes more
    "cnn": Expected((24, 24), {"Gemm": 1}, {"Sigmoid": 1}),
}

# The angles and the masks depend on the length: they are computed, once for all the layers.
_ANGLES = {"Cos": 1, "Sin": 1, "Expand": 2}
#: By architecture, when the length of the sequences is not known.
ANY_LENGTH = {
    # one more for the mask, which is computed as well
    "llama-gqa": Expected((79, 65), _LLAMA, _SILU | _ANGLES | {"Expand": 3}),
    # a Max of int64 is a Less and a Where: the kernel of ONNX Runtime is wrong beyond 32 bits
    "bert": Expected((86, 74), _BERT, _POOLER | {"Expand": 4}),
    "gpt2": Expected((86, 86), EXPECTED["gpt2"].kernels, EXPECTED["gpt2"].left | {"Expand": 1}),
}
