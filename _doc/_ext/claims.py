"""Conclusions of the original pages, compared with the measurements of this site."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from _ext.answers import is_cuda
from _ext.tables import list_table, plain, reference
from ortmeter.study.records import Record


@dataclass(frozen=True)
class Original:
    """A conclusion of an original page.

    Parameters
    ----------
    text : str
        What was claimed, in our words.
    page : str
        Page of this site that checks it.
    topic : str
        Topic of the claims that answer it.
    provider : str
        Provider that it was made for.
    """

    text: str
    page: str
    topic: str
    provider: str = "CPU"


ORIGINALS = (
    Original(
        "joining the weights at every run, then one Gemm, is 33% faster than two Gemms",
        "plot_op_gemm2_cuda",
        "changing",
        "CUDA",
    ),
    Original(
        "a decomposed einsum is faster than Einsum once its order was searched for",
        "plot_einsum_decomposition",
        "searched",
    ),
    Original(
        "a decomposed einsum is slower than Einsum as it was written: with one thread",
        "plot_einsum_decomposition",
        "written_one",
    ),
    Original(
        "a decomposed einsum is slower than Einsum as it was written: with several threads",
        "plot_einsum_decomposition",
        "written",
    ),
    Original(
        "permuting the letters has no impact on Einsum, where it is not decomposed",
        "plot_einsum_decomposition",
        "letters",
    ),
    Original(
        "a product fused with a transposition explains why it is faster: with one thread",
        "plot_einsum_decomposition",
        "fused_one",
    ),
    Original(
        "a product fused with a transposition explains why it is faster: with several threads",
        "plot_einsum_decomposition",
        "fused",
    ),
    Original(
        "discrepancies are significant, higher for float16",
        "plot_layer_norm_discrepancies",
        "half",
        "CUDA",
    ),
    Original(
        "the implementation of a LayerNormalization cannot be exchanged",
        "plot_layer_norm_discrepancies",
        "bits",
    ),
    Original(
        "default is 1.72 times faster than eager, with TF32 in onnxruntime alone",
        "plot_custom_backend_llama_102",
        "eager",
        "CUDA",
    ),
    Original(
        "the kernels of onnxruntime add 4% to default",
        "plot_custom_backend_llama_102",
        "onnxruntime",
        "CUDA",
    ),
)


def claims_text(records: Sequence[Record]) -> list[str]:
    """Write every original claim with its answers, in lines of reStructuredText."""
    rows = []
    for original in ORIGINALS:
        claimed = f"On {original.provider}: {plain(original.text)}"
        found = [
            f"| **{plain(where)}**: {plain(text)}" for where, text in answers(original, records)
        ]
        rows.append((claimed, reference(original.page), "\n".join(found)))
    return list_table(("claimed", "page", "measured"), rows, classes="stacked claims")


def answers(original: Original, records: Iterable[Record]) -> list[tuple[str, str]]:
    """List (machine and provider, sentence) for the claims that answer an original one.

    A claim stays open until a record answers it; a claim about CUDA, a record of CUDA.
    """
    own = [record for record in records if record.page == original.page]
    found = [
        (_where(record), str(claim))
        for record in own
        for claim in record.claims
        if claim.topic == original.topic
    ]
    asked = original.provider == "CUDA"
    answered = found and any(is_cuda(record.configuration) == asked for record in own)
    return found if answered else [(original.provider, "open, not recorded yet"), *found]


def _where(record: Record) -> str:
    origin = record.origin("")
    return f"{origin['machine']}, {origin['provider'].upper()}"
