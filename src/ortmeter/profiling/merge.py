"""Two profiles side by side."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ortmeter.profiling.graph import STANDARD
from ortmeter.profiling.record import Profile
from ortmeter.profiling.tables import NODE, TENSORS, Ints, first_rows, number

_KEY = ["op", "domain", "provider", "signature"]
_DESCRIPTION = [*_KEY, "rank", *TENSORS]
_TIMES = ["median", "mean", "total", "calls"]
_SIDES = ("baseline", "candidate")
_PROVIDER = "ExecutionProvider"


def merge_profiles(baseline: Profile, candidate: Profile) -> pd.DataFrame:
    """Match the nodes of two profiles.

    Two nodes match if they have the same operator, domain, provider, and types and shapes of inputs
    and outputs. Among these, nodes match by name first, then by order in the graph. Information
    that one profile lacks, such as domains without a model, is ignored.

    Parameters
    ----------
    baseline, candidate : Profile
        Profiles to compare, with any numbers of runs. Their times are comparable if one call of
        :func:`~ortmeter.profiling.profile_together` took them; :meth:`Profile.compare` checks that
        they agree with the latencies.

    Returns
    -------
    pandas.DataFrame
        One row per node and set of shapes, longest first. Columns
        ``label`` (str, compact, different in each row), ``side`` (category: ``both``, ``baseline
        only``, ``candidate only``), ``op``, ``domain``, ``provider``, ``signature`` as in
        ``Profile.events``, ``rank`` (among the nodes of its kind, in the order of the graph),
        ``input_types``, ``input_shapes``, ``output_types``, ``output_shapes`` as in
        ``Profile.events``; then, with suffixes ``_baseline`` and ``_candidate``, missing on the
        side that lacks the node: ``name``, ``median`` (µs per run, over the steady runs where it
        is), ``mean`` (µs per steady run), ``total`` (µs, all steady runs), ``calls`` (executions
        in them).

    Notes
    -----
    Times are ``self_duration``: totals add up to the total of the profile, and means to the kernel
    time of a run. A node is identified by its name and its place in the graph, not by its start
    time, since threads may change the order of execution. A node in the body of a Loop is one row,
    with one call per iteration.

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
    columns = [*NODE, "signature", "iteration", "self_duration", *TENSORS]
    sides = [profile.steady[columns] for profile in (baseline, candidate)]
    known = [name for name in _KEY if all(e.empty or e[name].notna().any() for e in sides)]
    runs = [len(profile.steady_runs) for profile in (baseline, candidate)]
    texts = dict.fromkeys(("name", *_KEY), object)  # their categories differ
    frames = [_nodes(*each, known).astype(texts) for each in zip(sides, runs, strict=True)]
    nodes = pd.concat([frame.assign(side=rank) for rank, frame in enumerate(frames)])
    nodes = nodes.reset_index(drop=True)
    nodes["kind"] = number(nodes, known)
    rows = _match(nodes)
    table = first_rows(nodes, rows)
    table["rank"] = table.groupby("kind").cumcount()
    table = table[_DESCRIPTION]
    for side, suffix in enumerate(_SIDES):
        mine = np.flatnonzero(nodes["side"] == side)
        times = nodes.iloc[mine].set_index(rows[mine])[["name", *_TIMES]]
        times = times.astype({"name": "str", "total": "Int64", "calls": "Int64"})
        table = table.join(times.add_suffix(f"_{suffix}"))
    table.insert(0, "label", _labels(table))
    absent = [table[f"calls_{suffix}"].isna().to_numpy() for suffix in _SIDES]
    values = ["both", *(f"{side} only" for side in _SIDES)]
    codes: Ints = np.select([absent[1], absent[0]], [1, 2], 0)
    side_of = pd.Categorical.from_codes(codes, pd.Index(values, dtype="str"))
    table.insert(1, "side", pd.Series(side_of))
    length = table[["mean_baseline", "mean_candidate"]].sum(axis=1)
    return table.iloc[np.argsort(-length.to_numpy(), kind="stable")].reset_index(drop=True)


def _nodes(steady: pd.DataFrame, runs: int, known: Sequence[str]) -> pd.DataFrame:
    """Sum the time of each node and signature, in the order of the graph."""
    codes = number(steady, [*NODE, "signature"] if "signature" in known else NODE)
    table = first_rows(steady, codes)
    per_run = steady["self_duration"].groupby([codes, steady["iteration"].to_numpy()]).sum()
    nodes = per_run.groupby(level=0)
    table["median"], table["total"] = nodes.median(), nodes.sum()
    table["mean"] = table["total"] / runs
    table["calls"] = np.bincount(codes, minlength=len(table))
    places = _places(table)
    return table.iloc[sorted(range(len(table)), key=places.__getitem__)]


def _places(nodes: pd.DataFrame) -> list[tuple[int, ...]]:
    """Place of each node in the graph: its index, after those of the nodes whose body it is in."""
    index = nodes["node_index"].fillna(-1).tolist()
    parents = nodes["parent"].astype(object).where(nodes["parent"].notna(), None).tolist()
    names = nodes["name"].tolist()
    rows = {name: row for row, name in reversed(list(enumerate(names)))}
    places = []
    for row, parent in enumerate(parents):
        place, around, seen = [index[row]], parent, {None}
        while around not in seen and around in rows:
            seen.add(around)
            place.insert(0, index[rows[around]])
            around = parents[rows[around]]
        places.append(tuple(place))
    return places


def _match(nodes: pd.DataFrame) -> Ints:
    """Row of each node in the table; two nodes that match have the same."""
    place = nodes.groupby(["side", "kind", "name"], observed=True).cumcount()
    named = nodes.assign(place=place).duplicated(["kind", "name", "place"], keep=False)
    in_order = nodes[~named].groupby(["side", "kind"]).cumcount()
    keys = {"name": nodes["name"].where(named), "place": place.where(named, in_order)}
    return number(nodes.assign(named=named, **keys), ["kind", "named", "name", "place"])


def _labels(table: pd.DataFrame) -> "pd.Series[str]":
    """Write one label per row; the domain and the provider are told when they are needed."""
    domain = table["domain"].astype("str")
    prefix = (domain + ".").where(domain.notna() & (domain != STANDARD), "")
    labels = prefix + table["op"].astype("str") + table["signature"].astype("str").fillna("")
    labels += " #" + table["rank"].astype("str")
    if len(table["provider"].unique()) > 1:
        labels += " @" + table["provider"].astype("str").fillna("").str.removesuffix(_PROVIDER)
    return labels
