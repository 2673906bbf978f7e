"""How fast, how close: measure ONNX models on ONNX Runtime.

The names below are imported when they are first used: ``import ortmeter`` loads neither torch,
onnxruntime, pandas nor matplotlib.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortmeter.args import Param, get_parsed_args
    from ortmeter.candidates import function_candidate, session_candidate
    from ortmeter.claims import Answer, Claim, fact, group_claims, judge
    from ortmeter.conclusion import Conclusion
    from ortmeter.discrepancy import Tolerance, assert_close, max_diff, string_diff, string_type
    from ortmeter.display import show
    from ortmeter.einsum import decompose_einsum, einsum_model, optimize_einsum
    from ortmeter.error_bounds import matmul_error_bound
    from ortmeter.errors import OrtMeterError
    from ortmeter.evaluator import Evaluator, attribute, to_float64
    from ortmeter.feeds import random_feeds, read_feeds
    from ortmeter.iobinding import BoundSession
    from ortmeter.loading import load_model
    from ortmeter.models import freeze_inputs, sample_cnn
    from ortmeter.plotting import draw_model, latency_plot, speedup_plot, spread_plot
    from ortmeter.profiling import (
        Profile,
        check_profiles,
        merge_profiles,
        profile,
        profile_together,
        read_events,
        read_profile,
    )
    from ortmeter.providers import resolve_provider, usable_providers
    from ortmeter.results import load_records, record, replay, save_tables
    from ortmeter.sessions import make_session, node_assignment, optimized_model
    from ortmeter.sweep import SweepResult, load_sweep, run_sweep
    from ortmeter.timing import (
        Candidate,
        Comparison,
        Comparisons,
        measure,
        measure_each,
        speedup,
    )

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "BoundSession",
    "Candidate",
    "Claim",
    "Comparison",
    "Comparisons",
    "Conclusion",
    "Evaluator",
    "OrtMeterError",
    "Param",
    "Profile",
    "SweepResult",
    "Tolerance",
    "__version__",
    "assert_close",
    "attribute",
    "check_profiles",
    "decompose_einsum",
    "draw_model",
    "einsum_model",
    "fact",
    "freeze_inputs",
    "function_candidate",
    "get_parsed_args",
    "group_claims",
    "judge",
    "latency_plot",
    "load_model",
    "load_records",
    "load_sweep",
    "make_session",
    "matmul_error_bound",
    "max_diff",
    "measure",
    "measure_each",
    "merge_profiles",
    "node_assignment",
    "optimize_einsum",
    "optimized_model",
    "profile",
    "profile_together",
    "random_feeds",
    "read_events",
    "read_feeds",
    "read_profile",
    "record",
    "replay",
    "resolve_provider",
    "run_sweep",
    "sample_cnn",
    "save_tables",
    "session_candidate",
    "show",
    "speedup",
    "speedup_plot",
    "spread_plot",
    "string_diff",
    "string_type",
    "to_float64",
    "usable_providers",
]

_NAMES_OF_MODULE = {
    "args": ("Param", "get_parsed_args"),
    "candidates": ("function_candidate", "session_candidate"),
    "claims": ("Answer", "Claim", "fact", "group_claims", "judge"),
    "conclusion": ("Conclusion",),
    "discrepancy": ("Tolerance", "assert_close", "max_diff", "string_diff", "string_type"),
    "display": ("show",),
    "error_bounds": ("matmul_error_bound",),
    "einsum": ("decompose_einsum", "einsum_model", "optimize_einsum"),
    "errors": ("OrtMeterError",),
    "evaluator": ("Evaluator", "attribute", "to_float64"),
    "feeds": ("random_feeds", "read_feeds"),
    "iobinding": ("BoundSession",),
    "loading": ("load_model",),
    "models": ("freeze_inputs", "sample_cnn"),
    "plotting": ("draw_model", "latency_plot", "speedup_plot", "spread_plot"),
    "profiling": (
        "Profile",
        "check_profiles",
        "merge_profiles",
        "profile",
        "profile_together",
        "read_events",
        "read_profile",
    ),
    "providers": ("resolve_provider", "usable_providers"),
    "results": ("load_records", "record", "replay", "save_tables"),
    "sessions": ("make_session", "node_assignment", "optimized_model"),
    "sweep": ("SweepResult", "load_sweep", "run_sweep"),
    "timing": (
        "Candidate",
        "Comparison",
        "Comparisons",
        "measure",
        "measure_each",
        "speedup",
    ),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'ortmeter' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ortmeter.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
