"""Thirteen small architectures with seeded weights, for tests."""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

VOCABULARY = 100
BATCH, LENGTH = 2, 32
IMAGE = 32
DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
SHARED = {"num_key_value_heads": 2}
EACH = ("sdpa", "eager")


class ConvNet(torch.nn.Module):
    """Convolutions, normalized or not, a residual and a classifier."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(8, 16, 3, padding=1, bias=False),
            torch.nn.SiLU(),
            torch.nn.AdaptiveAvgPool2d(4),
        )
        self.residual = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.head = torch.nn.Linear(16 * 4 * 4, 10)

    def forward(self, image):
        features = self.stem(image)
        features = torch.relu(features + self.residual(features))
        return torch.log_softmax(self.head(features.flatten(1)), dim=-1)


def tokens(generator):
    return {"input_ids": torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)}


def padded_tokens(generator):
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, -5:] = 0
    return tokens(generator) | {"attention_mask": mask}


def image(generator):
    return {"pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE, generator=generator)}


@dataclass(frozen=True)
class Architecture:
    """A model of transformers, by name, and its inputs."""

    name: str
    options: dict[str, Any]
    config: str = ""
    inputs: Any = tokens
    attentions: tuple[str, ...] = EACH

    def build(self, attention):
        """The model, ready for inference, and its inputs by name."""
        torch.manual_seed(0)
        config = getattr(transformers, self.config or self.name.replace("Model", "Config"))
        config = config(**self.options, attn_implementation=attention)
        model = getattr(transformers, self.name)(config).eval()
        return model, self.inputs(torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class PlainTorch(Architecture):
    """The network of convolutions, which has no attention."""

    options: dict[str, Any] = field(default_factory=dict)

    def build(self, attention):
        torch.manual_seed(0)
        (pixels,) = image(torch.Generator().manual_seed(1)).values()
        return ConvNet().eval(), {"image": pixels}


ARCHITECTURES = {
    "llama": Architecture("LlamaModel", DECODER),
    "llama-gqa": Architecture("LlamaModel", DECODER | SHARED),
    "llama-causal-lm": Architecture("LlamaForCausalLM", DECODER, "LlamaConfig"),
    "mistral": Architecture("MistralModel", DECODER | SHARED | {"sliding_window": 16}),
    "qwen2": Architecture("Qwen2Model", DECODER | SHARED),
    "qwen3": Architecture("Qwen3Model", DECODER | SHARED | {"head_dim": 16}),
    "phi3": Architecture("Phi3Model", DECODER | {"pad_token_id": 0}),
    # transformers refuses sdpa: scores are capped
    "gemma2": Architecture(
        "Gemma2Model",
        DECODER | SHARED | {"head_dim": 16, "sliding_window": 16},
        attentions=("eager",),
    ),
    "gpt2": Architecture(
        "GPT2Model",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 64},
    ),
    "bert": Architecture("BertModel", DECODER, inputs=padded_tokens),
    "t5-encoder": Architecture(
        "T5EncoderModel",
        {
            "vocab_size": VOCABULARY,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 96,
            "num_layers": 2,
            "num_heads": 4,
        },
        "T5Config",
    ),
    "vit": Architecture(
        "ViTModel",
        {name: DECODER[name] for name in DECODER if "vocab" not in name and "max" not in name}
        | {"image_size": IMAGE, "patch_size": 8},
        inputs=image,
    ),
    "cnn": PlainTorch("ConvNet", attentions=("none",)),
}


def tensors(result):
    """The tensors of a result, those of its cache included, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        return tensors(list(result.values()))
    if isinstance(result, list | tuple):
        return [tensor for item in result for tensor in tensors(item)]
    layers = getattr(result, "layers", [])
    return [tensor for layer in layers for tensor in (layer.keys, layer.values)]
