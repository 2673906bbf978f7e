"""A token with a cache of keys and values on CUDA, in float16: its logits, and its time."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gpu_attention import Row, bind, note, plain_session, short, within
from onnxruntime.transformers.float16 import convert_float_to_float16

import ortmeter
from ortmeter.runtime.models import sample_decoder

CONCAT, GQA, SCATTER = "Concat", "GroupQueryAttention", "TensorScatter"
BOUND = 0.05  # of the largest logit


def decoding(*, quick: bool) -> Iterator[Row]:
    """Logits beside those of the CPU in float32; then the time of a token."""
    width, past, capacity = (128, 16, 32) if quick else (512, 128, 256)
    models = _halves(width, capacity)
    for filled in (False, True):  # the rows after the last token: zeros, or numbers
        cache = _cache(width, capacity, past, filled=filled)
        exact = _exact(width, capacity, cache[:, :, :past], past)
        for kind, in_place in itertools.product((CONCAT, GQA, SCATTER), (False, True)):
            case = f"{kind} {'in place' if in_place else 'bound'}, filled={filled}"
            given = cache[:, :, :past] if kind == CONCAT else cache
            if kind == CONCAT and in_place:
                continue
            try:
                found = _token(plain_session(models[kind]), given, past, in_place)
                error = np.abs(found().numpy() - exact).max() / np.abs(exact).max()
            except Exception as error:  # noqa: BLE001 - what is refused is a result
                yield note(case, short(error))
                continue
            yield within(case, error, BOUND)
    width, lengths = (128, (16,)) if quick else (2048, (128, 8192))
    capacity = 2 * max(lengths)
    models = _halves(width, capacity)
    for past in lengths:
        cache = _cache(width, capacity, past, filled=False)
        yield from _times(models, cache, past, budget_s=0.2 if quick else 3)


def _times(models: dict[str, Any], cache: Any, past: int, *, budget_s: float) -> Iterator[Row]:
    runs: dict[str, Callable[[], Any]] = {}
    for kind, places in {CONCAT: (False,), GQA: (False, True), SCATTER: (True,)}.items():
        given = cache[:, :, :past] if kind == CONCAT else cache
        session = plain_session(models[kind])
        if kind == CONCAT:
            feeds = _feeds(past, np.ascontiguousarray(given))
            runs["Concat, NumPy"] = lambda s=session, feeds=feeds: s.run(None, feeds)
        for in_place in places:
            name = f"{kind}, {'in place' if in_place else 'bound'}"
            runs[name] = _token(session, given, past, in_place)
    times = ortmeter.measure(runs, repeat=20, budget_s=budget_s, sync="cuda")
    for name in runs:
        gain = times.speedup(name, f"{GQA}, in place")
        yield note(f"a token after {past}, {name}", f"{times[name]}; {gain}")


def _halves(width: int, capacity: int) -> dict[str, Any]:
    kinds = (CONCAT, GQA, SCATTER)
    models = {kind: sample_decoder(kind, width=width, capacity=capacity) for kind in kinds}
    return {kind: convert_float_to_float16(model) for kind, model in models.items()}


def _feeds(past: int, given: Any) -> dict[str, Any]:
    """Return a token, its place, and a cache whose keys are its values."""
    token = {"ids": np.array([[1]]), "place": np.array([[past]])}
    return token | dict.fromkeys(("past_k", "past_v"), given)


def _cache(width: int, capacity: int, past: int, *, filled: bool) -> Any:
    shape = (1, width // 128, capacity, 64)
    drawn = np.random.default_rng(1).standard_normal(shape).astype(np.float16)
    return drawn if filled else np.where(np.arange(capacity)[:, None] < past, drawn, 0)


def _exact(width: int, capacity: int, given: Any, past: int) -> Any:
    """Logits of the same model in float32 on the CPU, where tokens are concatenated."""
    model = sample_decoder(CONCAT, width=width, capacity=capacity)
    feeds = _feeds(past, given.astype(np.float32))
    return ortmeter.make_session(model, provider="cpu").run(["logits"], feeds)[0]


def _token(session: Any, given: Any, past: int, in_place: bool) -> Callable[[], Any]:
    """Return what runs a token, its caches bound on the GPU."""
    caches = dict.fromkeys(("past_k", "past_v"), given)
    numbers = {"ids": np.array([[1]]), "place": np.array([[past]])}
    return bind(session, caches, numbers, "logits", in_place)
