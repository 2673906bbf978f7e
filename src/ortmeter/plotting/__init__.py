"""Drawings of models and plots of measurements."""

from ortmeter.plotting.drawing import Drawing
from ortmeter.plotting.graph import NodeNote, draw_model
from ortmeter.plotting.latency import latency_plot
from ortmeter.plotting.speedup import speedup_plot

__all__ = ["Drawing", "NodeNote", "draw_model", "latency_plot", "speedup_plot"]
