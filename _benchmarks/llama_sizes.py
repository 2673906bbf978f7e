"""Llama models with random weights, and the matrix products that each of them cannot avoid."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper as oh
import torch
from transformers import LlamaConfig, LlamaModel

import ortmeter

__all__ = ["SIZES", "Size", "build_llama", "draw_tokens", "matrix_products"]


@dataclass(frozen=True)
class Size:
    """Dimensions of a model and of its inputs.

    Parameters
    ----------
    hidden, heads, mlp, layers : int
        Dimensions of the model.
    batch, length : int
        Sequences, and tokens in each of them.
    attention : str
        How transformers computes the attention.
    rounds, repeat : int
        Processes for each candidate, and samples in each process.
    """

    hidden: int
    heads: int
    mlp: int
    layers: int
    batch: int
    length: int
    attention: str
    rounds: int
    repeat: int


SIZES = {
    "llama": Size(1024, 16, 2816, 2, 2, 256, "sdpa", rounds=5, repeat=15),
    "medium": Size(4096, 32, 1024, 1, 2, 1024, "eager", rounds=5, repeat=5),
}
_VOCABULARY, _POSITIONS = 1024, 2048


def build_llama(size: Size) -> Callable[[torch.Tensor], torch.Tensor]:
    """Build a model, as a function of the tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        vocab_size=_VOCABULARY,
        intermediate_size=size.mlp,
        max_position_embeddings=_POSITIONS,
        num_attention_heads=size.heads,
        attn_implementation=size.attention,
    )
    model = LlamaModel(config).eval()
    return lambda tokens: model(tokens, use_cache=False).last_hidden_state


def draw_tokens(size: Size) -> torch.Tensor:
    """Draw a batch of sequences."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(_VOCABULARY, (size.batch, size.length), generator=generator)


def matrix_products(size: Size, threads: int) -> Callable[[], object]:
    """Make a session of the matrix products of all the layers, and nothing else."""
    rng = np.random.default_rng(0)
    rows, head = size.batch * size.length, size.hidden // size.heads
    of_a_layer = {
        **dict.fromkeys(("query", "key", "value", "output"), (size.hidden, size.hidden)),
        "gate": (size.hidden, size.mlp),
        "up": (size.hidden, size.mlp),
        "down": (size.mlp, size.hidden),
    }
    feeds = {
        "X": (rows, size.hidden),
        "M": (rows, size.mlp),
        "Q": (size.batch, size.heads, size.length, head),
        "K": (size.batch, size.heads, head, size.length),
        "P": (size.batch, size.heads, size.length, size.length),
        "V": (size.batch, size.heads, size.length, head),
    }
    operands = {name: ("M" if name == "down" else "X", name) for name in of_a_layer}
    operands |= {"scores": ("Q", "K"), "context": ("P", "V")}
    weights, nodes = {}, []
    for layer in range(size.layers):
        weights |= {f"{name}_{layer}": shape for name, shape in of_a_layer.items()}
        for name, (left, right) in operands.items():
            own = f"{right}_{layer}" if right in of_a_layer else right
            nodes.append(oh.make_node("MatMul", [left, own], [f"{name}_out_{layer}"]))
    graph = oh.make_graph(
        nodes,
        "products",
        [oh.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in feeds.items()],
        [oh.make_tensor_value_info(n.output[0], onnx.TensorProto.FLOAT, None) for n in nodes],
        [onnx.numpy_helper.from_array(_draw(rng, s), n) for n, s in weights.items()],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 23)], ir_version=11)
    arrays = {name: _draw(rng, shape) for name, shape in feeds.items()}
    return ortmeter.session_candidate(model, arrays, provider="cpu", threads=threads).function


def _draw(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) / 32
