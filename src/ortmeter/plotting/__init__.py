"""Drawings of models and plots of measurements."""

import lazy_loader  # type: ignore[import-untyped]

# A command that draws one plot, or none, imports no other.
_NAMES = {
    "cold": ["cold_plot"],
    "drawing": ["Drawing"],
    "graph": ["NodeNote", "draw_model"],
    "heatmap": ["change_map"],
    "latency": ["latency_plot", "speedup_plot"],
    "load": ["load_plot"],
    "profile": ["bar_plot", "comparison_plot", "operator_plot", "profile_notes"],
    "timeline": ["timeline_plot"],
}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_NAMES)
