"""Small architectures with seeded weights, for tests: those of transformers and a plain network."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

import torch

VOCABULARY = 100
BATCH, LENGTH = 2, 32
IMAGE = 32
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
TEXT = SIZES | {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
PICTURE = SIZES | {"image_size": IMAGE, "patch_size": 8}
# Queries share the keys and values of a head; a head need not be the hidden size over the heads.
SHARED = {"num_key_value_heads": 2}
WIDE_HEADS = {"head_dim": 32}
WINDOW = {"sliding_window": 16}
SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}
EACH = ("sdpa", "eager")
STACK_OF_MATRICES = 3


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

    def forward(self, pixel_values):
        features = self.stem(pixel_values)
        features = torch.relu(features + self.residual(features))
        return torch.log_softmax(self.head(features.flatten(1)), dim=-1)


def tokens(generator, length=LENGTH):
    return {"input_ids": torch.randint(2, VOCABULARY, (BATCH, length), generator=generator)}


def padded_tokens(generator, length=LENGTH):
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[0, -5:] = 0
    return tokens(generator, length) | {"attention_mask": mask}


def two_sequences(generator):
    """For an encoder and a decoder, of different lengths."""
    (decoded,) = tokens(generator, LENGTH // 2).values()
    return tokens(generator) | {"decoder_input_ids": decoded}


def picture(generator):
    return {"pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE, generator=generator)}


def spectrogram(generator):
    return {"input_features": torch.randn(BATCH, 16, 2 * LENGTH, generator=generator)}


@dataclass(frozen=True)
class Architecture:
    """A model, its options and its inputs.

    A model of transformers is a name: it is imported when it is built. ``layers`` are the options
    that say how many layers there are.
    """

    model: str | type[torch.nn.Module]
    options: dict[str, Any] = field(default_factory=dict)
    inputs: Callable[..., dict[str, torch.Tensor]] = tokens
    attentions: tuple[str, ...] = EACH
    layers: tuple[str, ...] = ("num_hidden_layers",)

    def build(self, attention, *, layers=2, **options):
        """The model, ready for inference, and its inputs by name."""
        torch.manual_seed(0)
        if isinstance(self.model, str):
            kind = resolve_name(self.model)
            given = self.options | dict.fromkeys(self.layers, layers) | options
            model = kind(kind.config_class(**given, attn_implementation=attention))
        else:
            model = self.model()
        generator = torch.Generator().manual_seed(1)
        _draw_weights(model, generator)
        return model.eval(), self.inputs(generator)


def _draw_weights(model, generator):
    """Draw weights for which every operation matters.

    Those of a new model hide mistakes: biases are zeros, scales are ones, and matrices are so small
    that an attention weighs everything the same.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(drawn / 10)
            elif parameter.ndim <= STACK_OF_MATRICES:
                parameter.copy_(drawn / parameter.shape[-1] ** 0.5)


def _decoder(name, *options, attentions=EACH, **others):
    given = TEXT | {key: value for some in options for key, value in some.items()} | others
    return Architecture(f"transformers:{name}Model", given, attentions=attentions)


def _encoder(name, *, inputs=padded_tokens, sizes=TEXT, **options):
    return Architecture(f"transformers:{name}Model", sizes | options, inputs)


_T5 = {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_heads": 4}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
}

ARCHITECTURES = {
    # decoders with a rotary embedding
    "llama": _decoder("Llama"),
    "llama-gqa": _decoder("Llama", SHARED),
    "mistral": _decoder("Mistral", SHARED, WINDOW),
    "mixtral": _decoder(
        "Mixtral", SHARED, num_local_experts=4, experts_implementation="batched_mm"
    ),
    "qwen3": _decoder("Qwen3", SHARED, WIDE_HEADS),
    "phi3": _decoder("Phi3", SPECIAL_TOKENS),
    # transformers refuses sdpa: scores are capped
    "gemma2": _decoder(
        "Gemma2",
        SHARED,
        WIDE_HEADS,
        WINDOW,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=2.0,
        attentions=("eager",),
    ),
    # every second layer looks at the whole sequence
    "gemma3": _decoder("Gemma3Text", SHARED, WIDE_HEADS, WINDOW, sliding_window_pattern=2),
    "gpt-neox": _decoder("GPTNeoX"),
    # decoders with embedded positions
    "gpt2": Architecture(
        "transformers:GPT2Model",
        {"n_embd": 64, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 64},
        layers=("n_layer",),
    ),
    "opt": _decoder("OPT", ffn_dim=96, word_embed_proj_dim=64),
    # encoders of text
    "bert": _encoder("Bert"),
    # an encoder and a decoder
    "t5": Architecture(
        "transformers:T5Model",
        _T5 | {"num_layers": 1, "decoder_start_token_id": 0},
        two_sequences,
        layers=("num_decoder_layers",),
    ),
    "bart": Architecture(
        "transformers:BartModel",
        _BART | {"encoder_layers": 1, "max_position_embeddings": 64},
        two_sequences,
        layers=("decoder_layers",),
    ),
    # sound and pictures
    "whisper-encoder": Architecture(
        "transformers.models.whisper.modeling_whisper:WhisperEncoder",
        _BART | {"num_mel_bins": 16, "max_source_positions": LENGTH},
        spectrogram,
        layers=("encoder_layers",),
    ),
    "dinov2": Architecture(
        "transformers:Dinov2Model",
        {
            "hidden_size": 64,
            "mlp_ratio": 2,
            "num_attention_heads": 4,
            "image_size": IMAGE,
            "patch_size": 8,
        },
        picture,
    ),
    "clip-vision": _encoder("CLIPVision", inputs=picture, sizes=PICTURE),
    "cnn": Architecture(ConvNet, inputs=picture, attentions=("none",)),
}


def tensors(result):
    """The tensors of a result, those of its caches included, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        return tensors(list(result.values()))
    if isinstance(result, list | tuple):
        return [tensor for item in result for tensor in tensors(item)]
    if hasattr(result, "cross_attention_cache"):
        return tensors([result.self_attention_cache, result.cross_attention_cache])
    layers = getattr(result, "layers", [])
    return [tensor for layer in layers for tensor in (layer.keys, layer.values)]
