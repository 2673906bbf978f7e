"""What the original pages concluded, beside what this site measures."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from _ext.tables import list_table, plain, reference
from ortmeter.results import Record


@dataclass(frozen=True)
class Claim:
    """A conclusion of an original page.

    Parameters
    ----------
    text : str
        What was claimed, in our words.
    page : str
        Page of this site that checks it.
    pattern : str
        Regular expression that finds the sentences that answer it.
    """

    text: str
    page: str
    pattern: str


CLAIMS = (
    Claim(
        "joining the weights at every run, then one Gemm, is 33 % faster than two Gemms (CUDA)",
        "plot_op_gemm2_cuda",
        "^weights that change",
    ),
    Claim(
        "a decomposed einsum is faster than Einsum once its order was searched for",
        "plot_einsum_decomposition",
        "^claim of 2021, the decomposition that the search found",
    ),
    Claim(
        "a decomposed einsum is slower than Einsum as it was written",
        "plot_einsum_decomposition",
        "^claim of 2021, the decomposition as it was written",
    ),
    Claim(
        "a product fused with a transposition explains why it is faster",
        "plot_einsum_decomposition",
        "^claim of 2021, a product fused",
    ),
    Claim(
        "discrepancies are significant on CUDA, higher for float16",
        "plot_layer_norm_discrepancies",
        '^"(higher|significant)',
    ),
    Claim(
        "the implementation of a LayerNormalization cannot be exchanged",
        "plot_layer_norm_discrepancies",
        '^"cannot be exchanged"',
    ),
    Claim(
        "default is 1.72 times faster than eager, with TF32 in onnxruntime alone (CUDA)",
        "plot_custom_backend_llama_102",
        "^(default is|no difference can be claimed between default and) .*eager",
    ),
    Claim(
        "the kernels of onnxruntime add 4 % to default (CUDA)",
        "plot_custom_backend_llama_102",
        r"^default\+onnxruntime (adds|loses)",
    ),
    Claim(
        "compiled kernels add 3 % more (CUDA)",
        "plot_custom_backend_llama_102",
        r"^default\+onnxruntime\+experimental (adds|loses)",
    ),
)


def claims_text(records: Sequence[Record]) -> list[str]:
    """Write every claim with its answers, in lines of reStructuredText."""
    rows = [
        (plain(claim.text), reference(claim.page), *map(plain, answer))
        for claim in CLAIMS
        for answer in answers(claim, records)
    ]
    header = ("claimed", "page", "machine", "measured")
    return list_table(header, rows or [("nothing was recorded yet", "", "", "")])


def answers(claim: Claim, records: Iterable[Record]) -> list[tuple[str, str]]:
    """List (machine and provider, sentence) for every sentence that answers a claim."""
    return [
        (f"{record.machine}, {record.configuration['provider']}", sentence)
        for record in records
        if record.page == claim.page
        for sentence in record.sentences
        if re.search(claim.pattern, sentence)
    ]
