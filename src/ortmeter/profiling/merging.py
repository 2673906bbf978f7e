"""Two profiles side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from ortmeter.profiling.columns import Ints
from ortmeter.profiling.correlation import STANDARD
from ortmeter.profiling.frames import category
from ortmeter.profiling.record import Profile
from ortmeter.profiling.summary import first_rows, number

__all__ = ["merge_profiles"]

_KEY = ["op", "domain", "provider", "signature"]
_TENSORS = ["input_types", "input_shapes", "output_types", "output_shapes"]
_DESCRIPTION = [*_KEY, "rank", *_TENSORS]
_SIDES = ("baseline", "candidate")
_PROVIDER = "ExecutionProvider"


def merge_profiles(baseline: Profile, candidate: Profile) -> pd.DataFrame:
    """Match the nodes of two profiles.

    Two nodes match when they have the same key: operator, domain, provider, types and shapes of
    the inputs and of the outputs, and rank of these inside a run (the second Relu of a shape
    matches the second one). A part of the key that one of the profiles does not know at all, such
    as the domains without a model, does not count.

    Parameters
    ----------
    baseline, candidate : Profile
        What to compare; they may have different numbers of runs.

    Returns
    -------
    pandas.DataFrame
        One row per key, longest first. Columns ``label`` (str, compact, different in each row),
        ``side`` (category: ``both``, ``baseline only``, ``candidate only``), ``op``, ``domain``,
        ``provider``, ``signature``, ``rank``, ``input_types``, ``input_shapes``,
        ``output_types``, ``output_shapes`` as in ``Profile.events``; then, with suffixes
        ``_baseline`` and ``_candidate``, missing on the side that lacks the node: ``name`` (of
        its first execution), ``median`` (µs, over the steady runs where it is), ``mean`` (µs per
        steady run), ``total`` (µs, all steady runs), ``calls`` (executions in them).

    Notes
    -----
    Times are ``self_duration``, so that the totals of each side add up to those of its profile,
    and the means to the time that its kernels take in a run.

    Examples
    --------
    >>> import numpy as np
    >>> from ortmeter.profiling import profile
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[2] X) => (float[2] Y) { A = Identity(X)  B = Exp(A)  Y = Exp(B) }'''
    >>> feeds = {"X": np.float32([1, 2])}
    >>> before = profile(text, feeds, provider="cpu", optimization="none", repeat=2)
    >>> after = profile(text, feeds, provider="cpu", repeat=2)
    >>> table = merge_profiles(before, after).sort_values("label")
    >>> for label, side in zip(table["label"], table["side"]):
    ...     print(label, "|", side)
    Exp(f32 2) -> f32 2 #0 | both
    Exp(f32 2) -> f32 2 #1 | both
    Identity(f32 2) -> f32 2 #0 | baseline only
    """
    sides = (baseline, candidate)
    steady = [profile.steady for profile in sides]
    events = _stack(steady)
    known = [name for name in _KEY if all(s.empty or s[name].notna().any() for s in steady)]
    events["kind"] = number(events, known)
    places = number(events, ["side", "iteration", "kind"])
    events["rank"] = pd.Series(places).groupby(places).cumcount()
    rows = number(events, ["kind", "rank"])
    table = first_rows(events, rows)[_DESCRIPTION]
    for rank, (profile, suffix) in enumerate(zip(sides, _SIDES, strict=True)):
        mine = np.flatnonzero(events["side"] == rank)
        runs = int(profile.by_iteration()["steady"].sum())
        table = table.join(_measures(events.iloc[mine], rows[mine], runs).add_suffix(f"_{suffix}"))
    table.insert(0, "label", _labels(table))
    table.insert(1, "side", pd.Series(_side(table)))
    length = table[["mean_baseline", "mean_candidate"]].sum(axis=1)
    return table.iloc[np.argsort(-length.to_numpy(), kind="stable")].reset_index(drop=True)


def _stack(sides: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Put the events of both sides in one frame, whose column ``side`` is 0 or 1."""
    columns: dict[str, Any] = {
        "side": np.repeat(range(len(sides)), [len(side) for side in sides]),
        **{name: union_categoricals([side[name] for side in sides]) for name in ("name", *_KEY)},
    }
    for name in ("iteration", "self_duration", *_TENSORS):
        columns[name] = np.concatenate([side[name].to_numpy() for side in sides])
    return pd.DataFrame(columns, copy=False)


def _measures(events: pd.DataFrame, rows: Ints, runs: int) -> pd.DataFrame:
    """Statistics of one side; a row occurs at most once in a run."""
    found = events.groupby(rows)
    times = found["self_duration"]
    total = times.sum()
    return pd.DataFrame(
        {
            "name": found["name"].first().astype("str"),
            "median": times.median(),
            "mean": total / runs,
            "total": total.astype("Int64"),
            "calls": times.size().astype("Int64"),
        }
    )


def _labels(table: pd.DataFrame) -> "pd.Series[str]":
    """Write one label per row; the domain and the provider are told when they are needed."""
    domain = table["domain"].astype("str")
    prefix = (domain + ".").where(domain.notna() & (domain != STANDARD), "")
    labels = prefix + table["op"].astype("str") + table["signature"].astype("str").fillna("")
    labels += " #" + table["rank"].astype("str")
    if len(table["provider"].unique()) > 1:
        labels += " @" + table["provider"].astype("str").fillna("").str.removesuffix(_PROVIDER)
    return labels


def _side(table: pd.DataFrame) -> pd.Categorical:
    absent = [table[f"calls_{suffix}"].isna().to_numpy() for suffix in _SIDES]
    rows: Ints = np.select([absent[1], absent[0]], [1, 2], 0)
    return category(["both", *(f"{side} only" for side in _SIDES)], rows)
