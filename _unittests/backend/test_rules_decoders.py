"""What the rules on attention make of real decoders, of fixed sizes and of any size."""

import onnx
import pytest
import torch
import transformers

from ortmeter.backend import OrtBackend

BATCH, LENGTH, WINDOW = 2, 24, 8
DECODER = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "use_cache": False,
}
SLIDING = {"sliding_window": WINDOW}
HEADS = {"head_dim": 16}
# Operators that the rules on attention leave at the level default, beside those of static tables.
TABLES = {
    "Shape": 2,
    "Squeeze": 1,
    "Range": 1,
    "Cast": 1,
    "Cos": 1,
    "Sin": 1,
    "Concat": 1,
    "Expand": 2,
}
STATIC = {
    "Llama": ({}, 0),
    "Mistral": (SLIDING, 0),
    "Qwen2": ({}, 0),
    "Qwen3": (HEADS, 4),  # the heads are split while they are normalized
    "Phi3": (SLIDING | {"pad_token_id": 0}, 0),
    "Gemma2": (HEADS | SLIDING, 0),
    "Gemma3Text": (HEADS | SLIDING, 4),
}
CASES = [(name, how) for name in STATIC for how in ("sdpa", "eager")]
DYNAMIC = [("Llama", "eager"), ("Qwen3", "sdpa"), ("Mistral", "sdpa"), ("Phi3", "eager")]
CAPPED = {"Gemma2"}  # on CPU the kernel takes longer to cap than the nodes do
CASES.remove(("Gemma2", "sdpa"))  # transformers refuses: scores are capped


def decoder(name, attention, **more):
    """A small decoder whose vectors are not what they are initialized to."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        **(DECODER | STATIC[name][0] | more), attn_implementation=attention
    )
    model = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def identifiers(length=LENGTH, batch=BATCH):
    return torch.randint(100, (batch, length), generator=torch.Generator().manual_seed(1))


def relative_error(expected, got):
    (expected,), (got,) = expected.values(), got.values()
    return float((expected.double() - got.double()).abs().max() / expected.abs().max())


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_a_decoder_needs_no_split_heads(name, attention):
    model, backend = decoder(name, attention), OrtBackend("default", fallback=False)
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
        assert relative_error(model(identifiers()), compiled(identifiers())) <= 1e-5
    (graph,) = backend.graphs
    assert graph.operators["RotaryEmbedding"] == 2
    if name in CAPPED:
        assert "Attention" not in graph.operators
        return
    assert graph.operators["Attention"] == 1
    assert graph.operators.get("Reshape", 0) == STATIC[name][1]
    assert not {"Transpose", "Softmax", "Expand"} & set(graph.operators)


@pytest.mark.parametrize(("name", "attention"), DYNAMIC)
def test_a_decoder_of_any_size(name, attention):
    model, backend = decoder(name, attention), OrtBackend("default", fallback=False)
    tokens = identifiers()
    torch._dynamo.mark_dynamic(tokens, 0)
    torch._dynamo.mark_dynamic(tokens, 1)
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        for inputs in (tokens, identifiers(5, 3), identifiers(40, 4)):
            assert relative_error(model(inputs), compiled(inputs)) <= 1e-5
    (graph,) = backend.graphs
    assert graph.operators["Attention"] == 1
    assert graph.operators["RotaryEmbedding"] == 2
    assert graph.fusions["WindowMask" if "sliding_window" in STATIC[name][0] else "CausalMask"] == 1
    assert not {"Transpose", "Softmax", "GatherND", "CumSum", "Neg"} & set(graph.operators)
    # the shape that splits heads which are normalized
    split = {"Shape": 3, "Concat": 2} if STATIC[name][1] else {}
    assert {op: graph.operators[op] for op in TABLES} == TABLES | split


@pytest.mark.parametrize("name", ["Mistral", "Phi3", "Gemma2", "Gemma3Text"])
def test_a_long_sequence_has_a_window(name):
    sizes = {"max_position_embeddings": 600, "head_dim": 16}
    model = decoder(name, "eager", **sizes, num_key_value_heads=4)
    backend = OrtBackend("default+onnxruntime", fallback=False)
    tokens = identifiers(512, 1)
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
        assert relative_error(model(tokens), compiled(tokens)) <= 1e-5
    (graph,) = backend.graphs
    (node,) = [n for n in graph.model.graph.node if n.op_type == "GroupQueryAttention"]
    options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert options["local_window_size"] == WINDOW
