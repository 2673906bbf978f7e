"""GroupQueryAttention on CUDA, alone, with a cache, beside float64: which kernel is wrong, and how.

A token in one buffer runs XQA, which ``sdpa_kernel`` does not choose: ``ORT_ENABLE_XQA`` does. Two
buffers run cuDNN on compute capability 9.0 and more. What is wrong is compared with formulas that
are wrong in a known way.
"""

import itertools
import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
from gpu_attention import Row, bind, kernel_in, note, parse, plain_session, short, with_log, within

PAST, CAPACITY = 128, 256
#: Heads of the queries, of the keys, and their size: the decoder of the page, then a Llama.
SIZES = ((8, 4, 64), (12, 6, 64), (32, 8, 128))
#: XQA, then without it: the default, flash, memory-efficient, cuDNN, unfused.
KERNELS = (("1", 0), ("0", 0), ("0", 1), ("0", 2), ("0", 8), ("0", 16))
#: How an output may be wrong.
NO_QUERY, NO_KEYS = "the query is not rotated", "the new keys are not rotated"
NO_NEW, ALL_ROWS = "the new tokens are missing", "every row of the buffer is read"
LAST, FIRST, OTHER = "the last key only", "the first key only", "keys of another head"
UNSCALED, ZEROS = "scores are not scaled", "zeros"
WRONG = (NO_QUERY, NO_KEYS, NO_NEW, ALL_ROWS, LAST, FIRST, UNSCALED, OTHER, ZEROS)


class Case(NamedTuple):
    """What the operator is given, in float16."""

    heads: int
    shared: int
    size: int
    new: int = 1
    rotary: bool = True
    packed: bool = True
    filled: bool = True

    def __str__(self) -> str:
        told = [f"heads {self.heads}/{self.shared}x{self.size}", f"new {self.new}"]
        told += ["rotary"] * self.rotary + ["packed"] * self.packed
        return ", ".join([*told, "numbers after" if self.filled else "zeros after"])


def cached_attention(*, quick: bool) -> Iterator[Row]:
    """One buffer and two, each kernel; then what a wrong output looks like."""
    sizes = SIZES[:1] if quick else SIZES
    flags = itertools.product(sizes, (True, False), (True, False))
    cases = [Case(*size, rotary=rotary, packed=packed) for size, rotary, packed in flags]
    cases += [Case(*sizes[0], new=4), Case(*sizes[0], filled=False)]
    for case in cases:
        given = draw(case)
        exact = attend(case, given)
        bound = 16 * np.finfo(np.float16).eps * np.abs(exact).max()
        for in_place, (xqa, kernel) in itertools.product((False, True), KERNELS):
            os.environ["ORT_ENABLE_XQA"] = xqa
            found, log = with_log(lambda: _run(case, given, in_place, kernel))  # noqa: B023 - at once
            place = "one buffer" if in_place else "two buffers"
            name = f"{place}, XQA {xqa}, sdpa_kernel {kernel} ({kernel_in(log)}), {case}"
            if isinstance(found, Exception):
                yield note(name, short(found))
                continue
            error = np.abs(found - exact).max()
            yield within(name, error, bound)
            if not error <= bound:  # NaN too
                far = {how: np.abs(found - attend(case, given, how)).max() for how in WRONG}
                nearest = min(far, key=lambda how: far[how])
                yield note(f"{name}, nearest formula", f"{nearest}: {far[nearest]:.2g}")
    os.environ.pop("ORT_ENABLE_XQA", None)


def _run(case: Case, given: dict[str, Any], in_place: bool, kernel: int) -> Any:
    session = plain_session(write_model(case), severity=0, kernel=kernel)
    length = np.array([PAST + case.new], np.int32)
    run = bind(session, given, {"last": length - 1, "total": length}, "Y", in_place)
    return run().numpy().astype(np.float64)


def write_model(case: Case) -> onnx.ModelProto:
    """Write the operator alone."""
    cache = f"float16[1, {case.shared}, {CAPACITY}, {case.size}]"
    inputs = f"float16[1, {case.new}, {_width(case)}] Q, {cache} past_k, {cache} past_v"
    inputs += ", int32[1] last, int32[1] total"
    more = [f"[1, {case.new}, {case.shared * case.size}] {n}" for n in "KV" if not case.packed]
    more += [f"[{CAPACITY}, {case.size // 2}] {n}" for n in ("cos", "sin") if case.rotary]
    inputs += "".join(f", float16{one}" for one in more)
    outputs = f"float16[1, {case.new}, {case.heads * case.size}] Y"
    outputs += f", {cache} present_k, {cache} present_v"
    counts = f"num_heads = {case.heads}, kv_num_heads = {case.shared}"
    given = f"Q, {', ' if case.packed else 'K, V'}, past_k, past_v, last, total"
    return parse(
        f"g ({inputs}) => ({outputs}) {{ Y, present_k, present_v = com.microsoft."
        f"GroupQueryAttention<{counts}, do_rotary = {int(case.rotary)}>"
        f"({given}{', cos, sin' if case.rotary else ''}) }}"
    )


def _width(case: Case) -> int:
    return (case.heads + 2 * case.shared * case.packed) * case.size


def draw(case: Case) -> dict[str, Any]:
    """Draw what the operator is given, in float16."""
    rng = np.random.default_rng(0)
    widths = {"Q": _width(case)}
    widths |= {} if case.packed else dict.fromkeys("KV", case.shared * case.size)
    drawn = {name: rng.standard_normal((1, case.new, n)) for name, n in widths.items()}
    known = np.arange(CAPACITY)[:, None] < PAST
    for name in ("past_k", "past_v"):
        cache = rng.standard_normal((1, case.shared, CAPACITY, case.size))
        drawn[name] = np.where(known | case.filled, cache, 0)
    if case.rotary:
        powers = 10_000 ** (-np.arange(0, case.size, 2) / case.size)
        angles = np.outer(np.arange(CAPACITY), powers)
        drawn |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    return {name: array.astype(np.float16) for name, array in drawn.items()}


def attend(case: Case, given: dict[str, Any], wrong: str = "") -> Any:
    """Compute in float64 what the operator should give, or would give if it were wrong so."""
    given = {name: array.astype(np.float64) for name, array in given.items()}
    flat = given["Q"] if case.packed else np.concatenate([given[n] for n in "QKV"], axis=2)
    split = flat.reshape(case.new, -1, case.size).transpose(1, 0, 2)
    query, key, value = np.split(split, [case.heads, case.heads + case.shared])
    rows, columns = np.arange(PAST, PAST + case.new), np.arange(CAPACITY)
    if case.rotary:
        table = given["cos"][rows], given["sin"][rows]
        query = query if wrong == NO_QUERY else _rotate(query, *table)
        key = key if wrong == NO_KEYS else _rotate(key, *table)
    keys, values = given["past_k"][0], given["past_v"][0]
    keys[:, rows], values[:, rows] = key, value
    order = np.repeat(np.arange(case.shared), case.heads // case.shared)
    order = np.arange(case.heads) % case.shared if wrong == OTHER else order
    seen, last = columns <= rows[:, None], columns == rows[:, None]
    other = {NO_NEW: seen & (columns < PAST), ALL_ROWS: columns >= 0, LAST: last}
    scale = 1 if wrong == UNSCALED else 1 / math.sqrt(case.size)
    scores = scale * query @ keys[order].transpose(0, 2, 1)
    scores = np.where((other | {FIRST: columns == 0}).get(wrong, seen), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = shares / shares.sum(axis=-1, keepdims=True) @ values[order] * (wrong != ZEROS)
    return mixed.transpose(1, 0, 2).reshape(1, case.new, -1)


def _rotate(heads: Any, cos: Any, sin: Any) -> Any:
    one, two = np.split(heads, 2, axis=2)
    return np.concatenate([one * cos - two * sin, two * cos + one * sin], axis=2)
