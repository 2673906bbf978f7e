"""What to try, from a profile and its graph: findings with their evidence.

Each check is a function of :class:`Facts` that yields findings. A finding saves at most the time of
the nodes that it is about.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Unpack

import numpy as np
import onnx
import onnx.numpy_helper
import pandas as pd

from ortmeter.errors import OrtMeterError
from ortmeter.evidence import plural
from ortmeter.operators import find_operator
from ortmeter.profiling.findings import Advice, Facts, count, trial
from ortmeter.profiling.fusions import NearMiss, find_near_misses
from ortmeter.profiling.graph import STANDARD
from ortmeter.profiling.quantization import CONVERSIONS, REASONS, float_operators
from ortmeter.profiling.record import Profile
from ortmeter.profiling.run import Settings
from ortmeter.runtime.arrays import as_numpy, is_array
from ortmeter.runtime.graphs import constant_tensors, with_intermediate_outputs
from ortmeter.runtime.inputs import half_of_memory
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.patterns import Match, Pattern, find_patterns
from ortmeter.runtime.placement import NodeAssignment, enumerate_some, without_kernel
from ortmeter.runtime.rewriting import rewrite_model
from ortmeter.runtime.sessions import make_session

#: Findings that could save less are left out.
LEAST_SHARE = 0.01
_SHORT_US = 10
_SHORT_COUNT = 20
_SHORT_SHARE = 0.3
_COPIES = ("MemcpyFromHost", "MemcpyToHost")
_MOVES = ("Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze")
_HALF = {"f16", "bf16"}
# Smallest share that changes a time: a denormal number costs about a hundred others.
_LEAST_DENORMAL = 1e-3


def advise(
    profile: Profile,
    *,
    feeds: Mapping[str, Any] | None = None,
    **settings: Unpack[Settings],
) -> tuple[Advice, ...]:
    """Say what could make a model faster, from its profile.

    Parameters
    ----------
    profile : Profile
        A profile with its graphs; without them, only what the times tell is checked.
    feeds : mapping of str to array, optional
        Inputs of the model, to look for denormal numbers and to time what is advised.
    **settings
        Those of the session, as :func:`~ortmeter.profiling.profile` takes them.

    Returns
    -------
    tuple of Advice
        Those that may change all the time first, then the largest share; not those below 1%.

    Examples
    --------
    >>> import numpy as np
    >>> from ortmeter.profiling import profile
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[512, 512] X) => (float[512, 512] Y) {
    ...   A = Transpose <perm = [1, 0]> (X)  Y = Exp(A) }'''
    >>> feeds = {"X": np.zeros((512, 512), np.float32)}
    >>> found = advise(profile(text, feeds, provider="cpu"))
    >>> [(finding.topic, finding.nodes) for finding in found]
    [('layout', ('Transpose_0',))]
    """
    facts = Facts(profile, feeds, settings)
    if facts.nodes.empty:
        return ()
    findings = [finding for check in CHECKS for finding in check(facts)]
    kept = [f for f in findings if f.share is None or f.share >= LEAST_SHARE]
    return tuple(sorted(kept, key=lambda f: -1 if f.share is None else -f.share))


def _copies(facts: Facts) -> Iterator[Advice]:
    rows = facts.ops(_COPIES)
    if not rows.empty:
        yield facts.finding(
            "copies between providers",
            rows,
            f"{count(rows)}: tensors go to the CPU and back in each run",
            "find the nodes that run on the CPU beside them, and keep what follows an input or "
            "comes before an output on the same provider",
        )


def _fallbacks(facts: Facts) -> Iterator[Advice]:
    """Nodes on the CPU in a session on a device, computations of shapes apart."""
    devices = facts.profile.devices
    if not devices or facts.profile.original is None:
        return
    columns = (facts.nodes[name] for name in ("provider", "op", "domain", "name"))
    texts = [column.astype(object).where(column.notna(), "") for column in columns]
    placed = [
        NodeAssignment(provider, op, domain.removeprefix(STANDARD), name)
        for provider, op, domain, name in zip(*texts, strict=True)
    ]
    reasons = {node.name: why for node, why in without_kernel(facts.profile.original, placed)}
    rows = facts.named(reasons)
    if not rows.empty:
        pairs = zip(rows["name"], rows["op"], strict=True)
        told = enumerate_some([*dict.fromkeys(f"{op} ({reasons[name]})" for name, op in pairs)])
        yield facts.finding(
            "nodes on the CPU",
            rows,
            f"{count(rows)} on the CPU in a session on {', '.join(devices)}: {told}",
            "write these operators at another opset or with others that have a kernel; if they are "
            "most of the model, --provider cpu",
        )


def _casts(facts: Facts) -> Iterator[Advice]:
    rows = facts.ops(["Cast"])
    signatures = rows["signature"].astype(str)
    rows = rows[[("f32" in s) and any(h in s for h in _HALF) for s in signatures]]
    if rows.empty:
        return
    added = sum(name not in facts.written for name in rows["name"].astype(str))
    told = f"{count(rows)} between 16 and 32 bits take {rows['share'].sum():.0%} of {facts.of}"
    if facts.profile.devices:
        advice = "keep neighbours that run in float32 together, as one block of the model"
        yield facts.finding("casts", rows, told, advice)
    elif added and facts.written:
        told += f", and prevent fusions; ONNX Runtime added {added} of them"
        advice = "the model in float32: the CPU computes most operators in float32 only"
        # Other nodes may be fused without these casts: what that saves is not bounded.
        yield dataclasses.replace(facts.finding("casts", rows, told, advice), share=None)
    else:
        yield facts.finding("casts", rows, told, "the whole model in one type")


def _layout(facts: Facts) -> Iterator[Advice]:
    """Nodes that move data, on the CPU: on a device, only their launches are timed."""
    if facts.profile.devices:
        return
    rows = facts.ops(_MOVES)
    rows = rows[rows["median"] >= _SHORT_US * rows["calls"]]  # the others are short kernels
    if not rows.empty:
        yield facts.finding(
            "layout",
            rows,
            f"{count(rows)} move data and compute nothing",
            "write the model, or its weights, in the order that the next operator reads; join "
            "transpositions that undo each other",
        )


def _fusions(facts: Facts) -> Iterator[Advice]:
    """Fusions that one tensor prevents, in one finding when their operators are the same."""
    original, nodes = facts.profile.original, facts.nodes
    if original is None:
        return
    ops = {name: node.op_type for name, node in facts.written.items()}
    ran = zip(nodes["name"], nodes["op"], nodes["median"], strict=True)
    times = {name: median for name, op, median in ran if ops.get(name) == op}
    provider = "cuda" if "CUDAExecutionProvider" in facts.profile.devices else "cpu"
    alike: dict[tuple[tuple[str, ...], ...], list[NearMiss]] = {}
    for miss in find_near_misses(original, times, provider=provider):
        names = (miss.nodes, sorted(miss.obstacles[0][1]))
        alike.setdefault(tuple(tuple(map(ops.__getitem__, n)) for n in names), []).append(miss)
    for (made_of, preventing), misses in alike.items():
        tensor, readers = misses[0].obstacles[0]
        if not readers:
            cause, advice = "it is an output of the model", f"remove {tensor!r} from the outputs"
        else:
            cause = f"{readers[0]} ({ops[readers[0]]}) reads it"
            advice = (
                "give the inputs fixed sizes, so that shapes are known beforehand"
                if {*preventing} <= {"Shape", "Size"}
                else "let that node read another tensor, or compute what it reads a second time if "
                "it is cheap"
            )
        often = f", {len(misses)} times" if len(misses) > 1 else ""
        yield facts.finding(
            "missed fusion",
            facts.named([name for miss in misses for name in miss.saved]),
            f"ONNX Runtime would make {'/'.join(misses[0].fused)} of {' + '.join(made_of)}{often}, "
            f"but for {tensor!r}: {cause}",
            advice,
        )


def _patterns(facts: Facts) -> Iterator[Advice]:
    """Activations in forms that ONNX Runtime has no rule for, in one finding: one trial."""
    original = facts.profile.original
    if original is None or facts.profile.devices:
        return
    ran = {*zip(facts.nodes["name"].astype(str), facts.nodes["op"].astype(str), strict=True)}
    alike: dict[tuple[Pattern, str], list[Match]] = {}
    for match in find_patterns(original):
        if any((node.name, node.op_type) in ran for node in match.nodes):
            alike.setdefault((match.pattern, match.obstacle), []).append(match)
    if not alike:
        return
    told = []
    for (pattern, obstacle), matches in alike.items():
        ops = ", ".join(sorted({node.op_type for node in matches[0].nodes}))
        why = obstacle or f"ONNX Runtime does not fuse that, because {pattern.reason}"
        told.append(f"{len(matches)} {pattern.name} written as {ops}: {why}")
    rows = facts.named([n.name for group in alike.values() for m in group for n in m.nodes])
    made = dict.fromkeys(pattern for pattern, obstacle in alike if not obstacle)
    gained: str | None = ""
    advice = "let another node compute what is read outside, then bench --rewrite none,patterns"
    if made:
        gained = trial(facts, "--rewrite patterns", rewrite_model(original, "patterns"))
        written = ", ".join(f"{' and '.join(p.becomes)} ({p.since})" for p in made)
        advice = f"bench --rewrite none,patterns, which writes {written}"
    if gained is not None:
        yield facts.finding("activations in parts", rows, "; ".join(told) + gained, advice)


def _launches(facts: Facts) -> Iterator[Advice]:
    """Kernels that are shorter than what surrounds them."""
    nodes, on_device = facts.nodes, bool(facts.profile.devices)
    run_us = max(facts.run_us, 1e-9)
    is_short = (nodes["median"] < _SHORT_US * nodes["calls"]) | on_device
    short, long = nodes[is_short], nodes[~is_short]
    many = short["calls"].sum()
    if on_device:  # the host is busy with launches
        share = short["median"].sum() / run_us
    else:  # the total holds interruptions, which no median shows
        total = max(facts.profile.steady_runs["duration"].sum(), 1)
        share = 1 - max(long["median"].sum() / run_us, long["total"].sum() / total)
    share = float(np.clip(share, 0, 1))
    if many < _SHORT_COUNT or share < _SHORT_SHARE:
        return
    if on_device:
        told = f"{many:.0f} launches take {share:.0%} of a run"
        advice = "a larger batch, or a CUDA graph: --provider-option enable_cuda_graph=1"
    else:
        told = (
            f"{many:.0f} of {nodes['calls'].sum():.0f} kernels take less than {_SHORT_US} µs; they "
            f"and what is between kernels take {share:.0%} of a run"
        )
        advice = "a larger batch, so that each kernel does more"
    yield Advice("short kernels", (), told, advice, share, "a run")


def _quantized(facts: Facts) -> Iterator[Advice]:
    for why, (nodes, around) in float_operators(facts.ran).items():
        yield facts.finding(
            "float operators in a quantized graph",
            facts.named([*nodes, *around]),
            f"{count(facts.named(nodes))} {why}",
            REASONS[why],
        )


def _denormals(facts: Facts) -> Iterator[Advice]:
    original = facts.profile.original
    if original is None:
        return
    sizes = facts.profile.memory()["output_size"].sum()
    size = None if pd.isna(sizes) else int(sizes)
    shares = denormal_tensors(original, facts.feeds, size)
    touched = {
        name for name, node in facts.written.items() if shares.keys() & {*node.input, *node.output}
    }
    made_of = zip(facts.nodes["name"].astype(str), facts.nodes["origin"], strict=True)
    rows = facts.nodes[[not touched.isdisjoint((name, *origin)) for name, origin in made_of]]
    if rows.empty:
        return
    worst = max(shares, key=shares.__getitem__)
    yield facts.finding(
        "denormal numbers",
        rows,
        f"{plural(len(shares), 'tensor')} with numbers so small that a CPU may compute them "
        f"slowly, {shares[worst]:.1%} of {worst!r}",
        "--session-config session.set_denormal_as_zero=1; bench with =0,1 measures the gain",
    )


def denormal_tensors(
    model: onnx.ModelProto, feeds: Mapping[str, Any] | None, activations: int | None
) -> dict[str, float]:
    """Return the share of denormal numbers of the tensors that hold some, above 0.1%.

    Parameters
    ----------
    model : onnx.ModelProto
        Model, whose constants are read.
    feeds : mapping of str to array, optional
        Inputs: the model runs once, and all its intermediate results are read.
    activations : int, optional
        Bytes of the intermediate results; unknown, or more than half of the memory, they are not
        computed.

    Returns
    -------
    dict of str to float
        Share of the elements of each tensor, from 0 to 1.

    Examples
    --------
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[2] X) => (float[2] Z) { Y = Mul(X, X)  Z = Exp(Y) }''')
    >>> denormal_tensors(model, {"X": np.float32([1e-20, 1])}, 16)
    {'Y': 0.5}
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    arrays: dict[str, Any] = {
        name: onnx.numpy_helper.to_array(tensor)
        for name, tensor in (tensors | constant_tensors(model.graph.node)).items()
        if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    }
    arrays.update(feeds or {})
    if feeds is not None and activations is not None and activations <= half_of_memory():
        exposed = with_intermediate_outputs(model)
        with suppress(OrtMeterError):  # no kernel on the CPU, or too large for a message
            session = make_session(exposed, provider="cpu", optimization="none")
            arrays.update(run_session(session, feeds))
    shares = {name: _denormal_share(as_numpy(v)) for name, v in arrays.items() if is_array(v)}
    return {name: share for name, share in shares.items() if share >= _LEAST_DENORMAL}


def _denormal_share(array: np.ndarray) -> float:
    if array.dtype not in (np.float32, np.float64) or not array.size:
        return 0.0
    small = np.abs(array) < np.finfo(array.dtype).tiny
    return float(np.count_nonzero(small & (array != 0))) / array.size


def _constants(facts: Facts) -> Iterator[Advice]:
    if facts.profile.model is None:
        return
    graph = facts.profile.model.graph
    known = {tensor.name for tensor in graph.initializer}
    open_ = known & {value.name for value in graph.input}
    left = []
    for node in graph.node:
        read = {name for name in node.input if name}
        is_random = find_operator(node.op_type, node.domain).is_random
        if node.op_type == "Constant" or (read and read <= known and not is_random):
            known.update(node.output)
            if read and node.op_type not in CONVERSIONS:
                left.append(node.name)
    rows = facts.named(left)
    if rows.empty:
        return
    told = f"{count(rows)} with constant inputs"
    if open_:
        told += f"; {plural(len(open_), 'initializer')} may be replaced by an input"
        advice = "remove the initializers from the inputs of the graph, so that they are constants"
    else:
        advice = "--optimization all; if it is on, compute these results when the model is made"
    yield facts.finding("constant work", rows, told, advice)


CHECKS = (
    _copies,
    _fallbacks,
    _casts,
    _layout,
    _fusions,
    _patterns,
    _launches,
    _quantized,
    _denormals,
    _constants,
)
