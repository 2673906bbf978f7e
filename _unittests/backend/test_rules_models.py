"""What the rules make of decoders that test_architectures.py has not: windows, long sequences."""

import onnx
import pytest
import torch

from ortmeter.backend import OrtBackend

pytestmark = pytest.mark.slow  # the rules have their graphs in the other files

WINDOW = 8
# where GroupQueryAttention starts on CPU
LONG = 2048
SIZES = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "use_cache": False,
}


def decoder(name, attention, **more):
    """A small decoder whose vectors are not what they are initialized to."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**SIZES | more, attn_implementation=attention)
    model = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def compile_and_compare(model, level, tokens, *others, **options):
    """Check a model against torch; return what was done."""
    backend = OrtBackend(level, fallback=False)
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, fullgraph=True, **options)
        for inputs in (tokens, *others):
            (expected,), (got,) = model(inputs).values(), compiled(inputs).values()
            assert (expected - got).abs().max() <= 1e-5 * expected.abs().max()
    (graph,) = backend.graphs
    return graph


def draw(batch, length):
    return torch.randint(100, (batch, length))


def test_a_window_of_any_length_stays_a_mask():
    model = decoder("Mistral", "sdpa", sliding_window=WINDOW, num_key_value_heads=2)
    tokens = draw(2, 24)
    torch._dynamo.mark_dynamic(tokens, 0)
    torch._dynamo.mark_dynamic(tokens, 1)
    graph = compile_and_compare(model, "default", tokens, draw(3, 5), draw(4, 40))
    assert graph.operators["Attention"] == 1
    assert graph.operators["RotaryEmbedding"] == 2
    assert not {"Transpose", "Softmax", "Neg"} & set(graph.operators)


def test_a_long_sequence_has_a_window():
    sizes = {"num_key_value_heads": 4, "max_position_embeddings": LONG}
    model = decoder("Mistral", "eager", sliding_window=WINDOW, **sizes)
    graph = compile_and_compare(model, "default+onnxruntime", draw(1, LONG), dynamic=False)
    (node,) = [n for n in graph.model.graph.node if n.op_type == "GroupQueryAttention"]
    options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert options["local_window_size"] == WINDOW
