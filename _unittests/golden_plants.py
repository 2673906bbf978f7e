"""Planted samples of the pages: the data of a record, of which times, or findings, are changed.

The times are multiplied by the factors of a rule, which has the medians of the candidates that were
measured together: the last two axes are candidates and processes.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd

from ortmeter.timing import Comparison, Comparisons, Measurement
from ortmeter.workloads.load import Load, Turn


def noisy(medians, rng):
    """Processes that disagree."""
    return np.exp(rng.standard_normal(medians.shape))


def swapped(medians, rng):
    """The fastest candidate takes the time of the slowest, and so on: effects change sign."""
    typical = np.median(medians, axis=-1)
    ranks = typical.argsort(axis=-1, kind="stable").argsort(axis=-1, kind="stable")
    opposite = np.take_along_axis(np.sort(typical, axis=-1)[..., ::-1], ranks, axis=-1)
    return _ratio(opposite[..., None], typical[..., None]) * np.ones_like(medians)


def equal(medians, rng):
    """Every candidate takes the time of the first one."""
    first = np.median(medians[..., :1, :], axis=-1, keepdims=True)
    return _ratio(first, medians) * np.exp(0.002 * rng.standard_normal(medians.shape))


def drawn(medians, rng):
    """Effects drawn at random, from half to twice."""
    return np.exp(0.7 * rng.standard_normal((*medians.shape[:-1], 1))) * np.ones_like(medians)


def _ratio(ours, theirs):
    """Divide; a time of zero stays what it is."""
    ours, theirs = np.broadcast_arrays(ours, theirs)
    return np.divide(ours, theirs, out=np.ones(ours.shape), where=(ours > 0) & (theirs > 0))


RULES = {"noisy": noisy, "swapped": swapped, "equal": equal, "drawn": drawn}
RULES |= {f"drawn {seed}": drawn for seed in range(4, 8)}

#: Tables of times, by page and path: places and processes, which are columns. A candidate is a
#: column, or a row where a column names it.
WIDE = (["case", "threads"], ["pass", "process"])
TABLES = {
    "plot_broken": {("times",): WIDE},
    "plot_memory": {("found",): (["sequence"], ["process"])},
    "plot_operators_torch": {("times",): WIDE},
    "plot_torch_or_onnxruntime": {("kinds",): (["case", "kind"], ["process"])},
}
CANDIDATE, MEASURED = "candidate", ["memory (MiB)", "seconds"]


def planters_of(record):
    """Return what plants each sample, by its name: a function of the data of the record."""
    tables = TABLES.get(record.page, {})
    found = {
        name: Plant(rule, np.random.default_rng(rank), tables).of
        for rank, (name, rule) in enumerate(RULES.items())
    }
    return found | {"mirrored": mirrored} | OWN.get(record.page, {})


def mirrored(data):
    """Give the largest number of each column of a table the place of the least, and so on."""
    if isinstance(data, dict):
        return {name: mirrored(value) for name, value in data.items()}
    if not isinstance(data, pd.DataFrame):
        return data
    table = data.copy()
    for name in table.select_dtypes("number"):
        table[name] = table[name].max() + table[name].min() - table[name]
    return table


@dataclasses.dataclass
class Plant:
    """A rule applied to all that was measured."""

    rule: object
    rng: object
    tables: Mapping

    def of(self, data):
        # What is neither in a comparison nor in a table is compared across the record.
        groups = {}
        for one in _leaves(data):
            groups.setdefault((type(one), _samples(one).shape), []).append(one)
        self.known = {}
        for group in groups.values():
            self.known |= dict(zip(map(id, group), self.change(group), strict=True))
        return self.rebuild(data, ())

    def rebuild(self, value, path):
        if isinstance(value, Comparison):
            return Comparison(
                self.change(value.values()),
                value.stopped,
                reference_workload=value.reference_workload,
            )
        if isinstance(value, Comparisons):
            groups = {key: self.rebuild(group, path) for key, group in value.items()}
            return Comparisons(groups, value.axis)
        if isinstance(value, Mapping):
            return {key: self.rebuild(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.rebuild(item, (*path, i)) for i, item in enumerate(value))
        if path in self.tables:
            return self.change_table(value, *self.tables[path])
        return self.known.get(id(value), value)

    def change(self, group):
        group = list(group)
        samples = [_samples(one) for one in group]
        medians = np.array([np.median(x, axis=1) for x in samples])
        factors = self.rule(medians, self.rng)
        if self.rule is equal:  # sample by sample: a ratio is that of samples taken in turn
            noise = _ratio(factors * medians, medians[:1])
            if all(isinstance(one, Measurement) for one in group):
                return [
                    _taken(one, samples[0] * own[:, None])
                    for one, own in zip(group, noise, strict=True)
                ]
        return [_multiply(one, own) for one, own in zip(group, factors, strict=True)]

    def change_table(self, table, places, processes):
        named = [name for name in table.index.names if name]
        flat = table.reset_index() if named else table.copy()
        process = flat.groupby(processes).ngroup().to_numpy()
        if CANDIDATE in flat:
            who = flat.groupby(CANDIDATE, sort=False).ngroup().to_numpy()
            place = flat.groupby(places).ngroup().to_numpy()
            for column in MEASURED:
                medians = flat[column].groupby([place, who, process]).median().to_numpy()
                shape = [codes.max() + 1 for codes in (place, who, process)]
                factors = self.rule(medians.reshape(shape), self.rng)
                flat[column] *= factors[place, who, process]
        else:
            place = flat.groupby(places).ngroup().to_numpy()
            names = [name for name in flat.select_dtypes(float).columns if name not in places]
            medians = flat[names].groupby([place, process]).median().to_numpy()
            medians = medians.reshape(place.max() + 1, process.max() + 1, len(names))
            factors = self.rule(medians.swapaxes(1, 2), self.rng)
            flat[names] *= factors[place, :, process]
        return flat.set_index(named) if named else flat


def _leaves(value):
    """Yield the measurements that are in no comparison."""
    if isinstance(value, Measurement | Load):
        yield value
    elif isinstance(value, Mapping | list | tuple) and not isinstance(
        value, Comparison | Comparisons
    ):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)


def _samples(one):
    if isinstance(one, Measurement):
        return one.seconds
    return np.array([[1 / (turn.requests_per_s or 1)] for turn in one.turns])


def _taken(one, seconds):
    """Replace the samples by some that follow settling calls, whatever their number of calls."""
    return dataclasses.replace(one, seconds=seconds, settling=max(one.settling, 1))


def _multiply(one, factors):
    if isinstance(one, Measurement):
        return _taken(one, one.seconds * factors[:, None])
    turns = []
    for turn, factor in zip(one.turns, factors, strict=True):
        # With a rate, requests arrive when they did; a caller waits for its result.
        came = turn.arrivals * (factor if one.point.rate is None else 1)
        starts, ends = (
            came + factor * (times - turn.arrivals) for times in (turn.starts, turn.ends)
        )
        turns.append(Turn(came, starts, ends, turn.requests_per_s / factor, turn.left))
    return dataclasses.replace(one, turns=tuple(turns))


def slow(compared, **factors):
    """Multiply the samples of some candidates, in every group."""
    if isinstance(compared, Comparisons):
        groups = {key: slow(group, **factors) for key, group in compared.items()}
        return Comparisons(groups, compared.axis)
    found = [
        dataclasses.replace(m, seconds=m.seconds * factors.get(m.name, 1.0))
        for m in compared.values()
    ]
    return Comparison(found, compared.stopped, reference_workload=compared.reference_workload)


# What only one page has: a planted sample is a function of its data.


def two_optimizers(data):
    """A result is wrong whichever single optimizer is disabled."""
    row = {"case": "a graph", "told": "1", "candidates": data["releases"][-1], "disable": ""}
    return data | {"fusions": pd.DataFrame([row])}


def cheap_products(data):
    """Products take little in the last level."""
    kernels = data["kernels"]
    return data | {"kernels": kernels.assign(**{"products (ms)": kernels["products (ms)"] / 20})}


def read_at_once(data):
    """The session reads all the weights, 200 MiB."""
    name = f"{data['largest']}: external unpacked"
    own = data["memory"][name]
    rest = own["session"][1:] if isinstance(own["session"], tuple | list) else ()
    return data | {"memory": {**data["memory"], name: {**own, "session": (200.0, *rest)}}}


def moving_runs(data):
    """All runs and means differ, beyond any bound; one thread loses additions too."""
    tables = {
        name: data[name].assign(distinct=2, differing=1, bound=2.0)
        for name in ("operators", "whole")
    }
    additions = {name: row | {"wrong runs": 1} for name, row in data["additions"].items()}
    means = data["libraries"].assign(**{"again": 1.0, "other threads": 999.0})
    return data | tables | {"additions": additions, "libraries": means}


def exchanged(data):
    """The other LayerNormalization changes every output, beyond the bound."""
    distances = data["distances"].copy()
    rows = (distances["expected"] == "torch") & (distances["got"] == "ort LayerNorm")
    distances.loc[rows, ["largest", "mean"]] *= 1000
    distances.loc[rows, "> 0"] = distances.loc[rows, "n"]
    outputs = data["outputs"].copy()
    outputs.loc[outputs["run"] == "ort LayerNorm", "bound used"] = 1.5
    return data | {"distances": distances, "outputs": outputs}


def same_bits(data):
    """All kernels return the same bits, those of float64."""
    zeros = dict.fromkeys(("largest", "mean", "> 0"), 0.0)
    return data | {"distances": data["distances"].assign(**zeros)}


def full_batches_do_not_wait(data):
    """What waits takes the time of full batches, and the reverse."""
    full, waits = (data["opened"][name] for name in ("full batch", "what waits"))
    return data | {"opened": data["opened"] | {"full batch": waits, "what waits": full}}


def raced(data):
    """The race found ratios half as high, with narrow intervals."""
    ratio = 0.5 * data["tried"]["times better"]
    tried = data["tried"].assign(low=0.99 * ratio, high=1.01 * ratio, **{"times better": ratio})
    return data | {"tried": tried}


OWN = {
    "plot_broken": {"two optimizers": two_optimizers},
    "plot_custom_backend_llama_102": {"cheap products": cheap_products},
    "plot_first_result": {"read at once": read_at_once},
    "plot_kmeans_profiling": {
        "large products": lambda data: (
            data | {"operators": slow(data["operators"], Gemm=20.0), "floor": 100 * data["floor"]}
        ),
    },
    "plot_layer_norm_discrepancies": {"exchanged": exchanged, "same bits": same_bits},
    "plot_load": {"full batches do not wait": full_batches_do_not_wait},
    "plot_optimizers": {
        "all fused": lambda data: data | {"facts": data["facts"].assign(fused="3 Attention")},
    },
    "plot_parallelized_reduction": {"moving": moving_runs},
    "plot_profiling": {
        "slow kernels": lambda data: (
            data | {"nodes": data["nodes"].assign(median=2 * data["nodes"]["median"])}
        ),
    },
    "plot_trees": {"none change": lambda data: data | {"changes": 0 * data["changes"]}},
    "plot_tune": {
        "race half": raced,
        "one setting": lambda data: data | {"searched": data["searched"].assign(set="bound")},
        "wrong results": lambda data: (
            data | {"tried": data["tried"].assign(outcome="more than roundings explain")}
        ),
    },
}
