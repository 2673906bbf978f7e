"""Drawings of models and plots of measurements."""

from ortmeter.plotting.cold import cold_plot
from ortmeter.plotting.drawing import Drawing
from ortmeter.plotting.graph import NodeNote, draw_model
from ortmeter.plotting.heatmap import change_map
from ortmeter.plotting.latency import latency_plot, speedup_plot
from ortmeter.plotting.load import load_plot
from ortmeter.plotting.profile import bar_plot, comparison_plot, operator_plot, profile_notes
from ortmeter.plotting.timeline import timeline_plot

__all__ = [
    "Drawing",
    "NodeNote",
    "bar_plot",
    "change_map",
    "cold_plot",
    "comparison_plot",
    "draw_model",
    "latency_plot",
    "load_plot",
    "operator_plot",
    "profile_notes",
    "speedup_plot",
    "timeline_plot",
]
