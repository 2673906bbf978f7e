"""Attention on CUDA: which kernel runs, whether it is right, how long it takes.

What the other steps of gpu_check share comes first: types, rows that a step yields.
"""

import contextlib
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import torch

import ortmeter

Row = dict[str, Any]
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
F32, F16, BF16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
TORCH = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}
NAMES = {F32: "float32", F16: "float16", BF16: "bfloat16"}
TEXT = {**NAMES, F32: "float"}  # of the language of models


def parse(text: str, opset: int = 23) -> onnx.ModelProto:
    """Read a graph."""
    head = f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>'
    return onnx.parser.parse_model(f"{head} {text}")


def check(case: str, expected: object, found: object, *, agrees: bool | None = None) -> Row:
    """Compare; by default they agree when they are written alike."""
    agrees = str(expected) == str(found) if agrees is None else agrees
    return {"case": case, "expected": str(expected), "found": str(found), "agrees": agrees}


def within(case: str, error: float, bound: float) -> Row:
    """Compare an error with its bound; NaN is beyond."""
    return check(case, f"<= {bound:.2g}", f"{error:.2g}", agrees=bool(error <= bound))


def note(case: str, found: object) -> Row:
    """Keep what nothing is expected of."""
    return {"case": case, "expected": "", "found": str(found), "agrees": None}


def short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


#: Heads of the queries, of the keys, and their size: those of a Llama of 8 billions.
HEADS = (32, 8, 128)
WINDOW, CAP = 64, 20.0
LONGEST_OF_FLOAT32 = 512
MASKED = {"mask", "window"}


def attention(*, quick: bool) -> Iterator[Row]:
    """Which kernel runs, whether it is right, and its time beside torch's."""
    lengths = (16, 18) if quick else (128, 130, 256, 512, 2048, 4096)
    modes = ("plain", "mask", "window", "softcap")
    for dtype, length, mode in itertools.product((F16, BF16, F32), lengths, modes):
        if dtype != F32 or length <= LONGEST_OF_FLOAT32:  # scores are materialised
            yield from _attention(dtype, length, mode, quick=quick)


def _attention(dtype: int, length: int, mode: str, *, quick: bool) -> Iterator[Row]:
    sizes = heads, shared, size = (4, 2, 16) if quick else HEADS
    case = f"{NAMES[dtype]} {length} {mode}"
    rng = torch.Generator().manual_seed(0)
    drawn = [torch.randn(1, n, length, size, generator=rng) for n in (heads, shared, shared)]
    given = [tensor.to("cuda", TORCH[dtype]) for tensor in drawn]
    mask = _mask(mode, length)
    query, key, value = (tensor.double() for tensor in given)
    wanted = _attention_of_torch(query, key, value, mask, mode)
    candidates: dict[str, Any] = {}
    for name, model in _models(dtype, sizes, length, mode).items():
        of_gqa = name == "GroupQueryAttention"
        flat = [t.transpose(1, 2).flatten(2).contiguous() for t in given] if of_gqa else given
        more = [mask] if mode in MASKED and not of_gqa else []
        feeds = dict(zip("QKVM", [*flat, *more], strict=False))
        found, log = first_run(model, feeds)
        if isinstance(found, Exception):
            yield check(f"{name} {case}", "runs", short(found))
            continue
        found = found.unflatten(2, (heads, size)).transpose(1, 2) if of_gqa else found
        error = (found.double() - wanted).abs().max().item()
        # In 16 bits, the result alone is rounded; in float32, the scores are too.
        roundings = 4 * size**0.5 if dtype == F32 else 8
        bound = roundings * torch.finfo(TORCH[dtype]).eps * wanted.abs().max().item()
        yield within(f"{name} {case}, error", error, bound)
        kernel, accepted = kernel_in(log), _kernels_expected(name, dtype, length, mode)
        yield check(f"{name} {case}, kernel", accepted, kernel, agrees=kernel in accepted)
        candidates[name] = ortmeter.BoundSession(plain_session(model), feeds).run
    if mode != "softcap":
        candidates["torch"] = lambda: _attention_of_torch(*given, mask, mode)
    if candidates:
        budget_s = 0.1 if quick else 0.5
        results = ortmeter.measure(candidates, repeat=5, budget_s=budget_s, sync="cuda")
        medians = {name: f"{found.median * 1e6:.1f} µs" for name, found in results.items()}
        yield note(f"{case}, median of a call", medians)


def _kernels_expected(name: str, dtype: int, length: int, mode: str) -> tuple[str, ...]:
    """Kernels that may run, on compute capability 8.0 and more."""
    if name == "GroupQueryAttention":  # cuDNN takes neither a window nor a soft cap
        return ("flash", "cudnn") if mode == "plain" else ("flash",)
    if mode in MASKED:
        fits = length % 4 == 0 and dtype != F32
        return ("efficient",) if fits else ("unfused",)
    return ("unfused",) if dtype == F32 else ("flash",)  # float32 with groups of heads


def kernel_in(log: str) -> str:
    """Read which kernel ran in what ONNX Runtime writes about it."""
    told = re.findall(r"SdpaKernel=(\w+)|Attention: using ([^\n(]+)", log)
    text = " ".join("".join(pair) for pair in told[-1:]).lower()
    words = {"cudnn": "cudnn", "flash": "flash", "efficient": "efficient", "cutlass": "efficient"}
    words |= {"unfused": "unfused", "math": "unfused", "xqa": "xqa"}
    return next((kernel for word, kernel in words.items() if word in text), text or "not told")


def _mask(mode: str, length: int) -> torch.Tensor:
    """Whom each token looks at: all but a hidden end, or a window, itself included, of the past."""
    rows, columns = torch.arange(length)[:, None], torch.arange(length)[None]
    mask = columns <= rows
    if mode == "mask":
        mask = (columns < length - 3) | (columns == rows)
    if mode == "window":
        mask = mask & (columns > rows - WINDOW)
    return mask.to("cuda")


def _attention_of_torch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, mode: str
) -> torch.Tensor:
    if mode == "softcap":
        groups = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
        scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
        scores = CAP * torch.tanh(scores / CAP)
        return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value
    rule = {"is_causal": True} if mode == "plain" else {"attn_mask": mask}
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, enable_gqa=True, **rule)


def _models(
    dtype: int, sizes: tuple[int, int, int], length: int, mode: str
) -> dict[str, onnx.ModelProto]:
    """Write the operator of the standard, and that of ONNX Runtime, which has no mask."""
    heads, shared, size = sizes
    query, cache = (f"{TEXT[dtype]}[1, {n}, {length}, {size}]" for n in (heads, shared))
    cap = f", softcap = {CAP}" if mode == "softcap" else ""
    rule, masks, mask = f"<is_causal = 1{cap}>", "", ""
    if mode in MASKED:
        rule, masks, mask = "", f", bool[{length}, {length}] M", ", M"
    found = {
        "Attention": f"g ({query} Q, {cache} K, {cache} V{masks}) => ({query} Y) "
        f"{{ Y = Attention{rule}(Q, K, V{mask}) }}"
    }
    if dtype != F32 and mode != "mask":
        wide, flat = (f"{TEXT[dtype]}[1, {length}, {n * size}]" for n in (heads, shared))
        counts = f"num_heads = {heads}, kv_num_heads = {shared}{cap}"
        counts += f", local_window_size = {WINDOW}" if mode == "window" else ""
        found["GroupQueryAttention"] = (
            f"g ({wide} Q, {flat} K, {flat} V) => ({wide} Y, {cache} PK, {cache} PV) "
            f"<int32[1] S = {{{length - 1}}}, int32 T = {{{length}}}> {{ Y, PK, PV = "
            f"com.microsoft.GroupQueryAttention<{counts}>(Q, K, V, , , S, T) }}"
        )
    return {name: parse(text) for name, text in found.items()}


def plain_session(
    model: onnx.ModelProto, severity: int = 3, kernel: int = 0
) -> onnxruntime.InferenceSession:
    """Create a session with options of the provider that make_session does not have."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = severity
    texts = {"device_id": "0", "use_tf32": "0", "sdpa_kernel": str(kernel)}
    providers, content = [(CUDA, texts), CPU], model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=providers, enable_fallback=0)


def bind(
    session: onnxruntime.InferenceSession,
    given: Mapping[str, Any],
    numbers: Mapping[str, Any],
    output: str,
    in_place: bool,
) -> Callable[[], Any]:
    """Return what runs a session on arrays of the GPU, a cache in one buffer or in two."""
    binding, kept = session.io_binding(), []
    for name, array in given.items():
        copy = np.array(array, order="C")
        kept.append(onnxruntime.OrtValue.ortvalue_from_numpy(copy, "cuda", 0))
        binding.bind_ortvalue_input(name, kept[-1])
        if name.startswith("past") and in_place:
            binding.bind_ortvalue_output(name.replace("past", "present"), kept[-1])
        elif name.startswith("past"):
            binding.bind_output(name.replace("past", "present"), "cuda", 0)
    binding.bind_output(output)
    for name, array in numbers.items():
        binding.bind_cpu_input(name, array)

    def run(kept: Any = kept) -> Any:  # noqa: ARG001 - buffers live as long as this
        session.run_with_iobinding(binding)
        return binding.get_outputs()[-1]

    return run


def first_run(model: onnx.ModelProto, feeds: Mapping[str, torch.Tensor]) -> tuple[Any, str]:
    """Run once; return the first output, or why there is none, and what ONNX Runtime writes."""

    def work() -> torch.Tensor:
        session = plain_session(model, severity=0)
        with ortmeter.BoundSession(session, feeds) as bound:
            bound.run()
            return next(iter(bound.outputs("torch").values())).clone()

    return with_log(work)


def with_log(work: Callable[[], Any]) -> tuple[Any, str]:
    """Return what a function gives, or its error, and what ONNX Runtime writes of its kernels."""
    os.environ["ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"] = "1"
    onnxruntime.set_default_logger_severity(0)  # the standard operator tells its kernel there
    with _written() as log:
        try:
            found = work()
        except Exception as error:  # noqa: BLE001 - whatever ONNX Runtime refuses
            found = error
    onnxruntime.set_default_logger_severity(3)
    del os.environ["ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"]
    return found, log()


@contextlib.contextmanager
def _written() -> Iterator[Callable[[], str]]:
    """Keep what native code writes on the standard output and error."""
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        kept, text = {end: os.dup(end) for end in (1, 2)}, ""
        try:
            for end in kept:
                os.dup2(file.fileno(), end)
            yield lambda: text
        finally:
            for end, copy in kept.items():
                os.dup2(copy, end)
                os.close(copy)
            file.seek(0)
            text = file.read().decode(errors="replace")


def masks(*, quick: bool) -> Iterator[Row]:  # noqa: ARG001 - as the others
    """A row of the lowest number of the type gives what a row without a mask gives, no NaN."""
    rng = torch.Generator().manual_seed(0)
    drawn = [torch.randn(1, 4, 16, 64, generator=rng) for _ in range(3)]
    for dtype, number in itertools.product(NAMES, ("lowest", "-inf")):
        mask, heads = torch.zeros(16, 16), f"{TEXT[dtype]}[1, 4, 16, 64]"
        mask[5] = torch.finfo(TORCH[dtype]).min if number == "lowest" else -torch.inf
        feeds = {n: x.to("cuda", TORCH[dtype]) for n, x in zip("QKVM", [*drawn, mask], strict=True)}
        inputs = f"{heads} Q, {heads} K, {heads} V, {TEXT[dtype]}[16, 16] M"
        model = parse(f"g ({inputs}) => ({heads} Y) {{ Y = Attention(Q, K, V, M) }}")
        found, log = first_run(model, feeds)
        case = f"{NAMES[dtype]} {number}, {kernel_in(log)}"
        if isinstance(found, Exception):
            yield check(case, "runs", short(found))
            continue
        yield check(case, "no NaN", "NaN" if found.isnan().any().item() else "no NaN")
        yield note(f"{case}, row 5", [round(v, 3) for v in found[0, 0, 5, :4].float().tolist()])
