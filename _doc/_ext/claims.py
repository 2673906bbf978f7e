"""What the original pages concluded, beside what this site measures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from _ext.tables import list_table, plain, reference
from ortmeter.pages import Record
from ortmeter.timing.claims import sentences


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
    """

    text: str
    page: str
    topic: str


ORIGINALS = (
    Original(
        "joining the weights at every run, then one Gemm, is 33 % faster than two Gemms (CUDA)",
        "plot_op_gemm2_cuda",
        "weights that change",
    ),
    Original(
        "a decomposed einsum is faster than Einsum once its order was searched for",
        "plot_einsum_decomposition",
        "decomposed after search",
    ),
    Original(
        "a decomposed einsum is slower than Einsum as it was written",
        "plot_einsum_decomposition",
        "decomposed as written",
    ),
    Original(
        "a product fused with a transposition explains why it is faster",
        "plot_einsum_decomposition",
        "fused product",
    ),
    Original(
        "discrepancies are significant on CUDA, higher for float16",
        "plot_layer_norm_discrepancies",
        "higher for float16",
    ),
    Original(
        "the implementation of a LayerNormalization cannot be exchanged",
        "plot_layer_norm_discrepancies",
        "cannot be exchanged",
    ),
    Original(
        "default is 1.72 times faster than eager, with TF32 in onnxruntime alone (CUDA)",
        "plot_custom_backend_llama_102",
        "default over eager",
    ),
    Original(
        "the kernels of onnxruntime add 4 % to default (CUDA)",
        "plot_custom_backend_llama_102",
        "onnxruntime over default",
    ),
    Original(
        "compiled kernels add 3 % more (CUDA)",
        "plot_custom_backend_llama_102",
        "experimental over onnxruntime",
    ),
)


def claims_text(records: Sequence[Record]) -> list[str]:
    """Write every original claim with its answers, in lines of reStructuredText."""
    rows = [
        (plain(original.text), reference(original.page), *map(plain, answer))
        for original in ORIGINALS
        for answer in answers(original, records)
    ]
    header = ("claimed", "page", "machine", "measured")
    return list_table(header, rows or [("nothing was recorded yet", "", "", "")])


def answers(original: Original, records: Iterable[Record]) -> list[tuple[str, str]]:
    """List (machine and provider, sentence) for the claims that answer an original one."""
    return [
        (f"{record.machine}, {record.configuration['provider']}", sentence)
        for record in records
        if record.page == original.page
        for sentence in sentences(c for c in record.claims if c.topic == original.topic)
    ]
