from .cold import cold_plot as cold_plot
from .drawing import Drawing as Drawing
from .graph import NodeNote as NodeNote
from .graph import draw_model as draw_model
from .heatmap import change_map as change_map
from .latency import latency_plot as latency_plot
from .latency import speedup_plot as speedup_plot
from .load import load_plot as load_plot
from .profile import (
    bar_plot as bar_plot,
)
from .profile import (
    comparison_plot as comparison_plot,
)
from .profile import (
    operator_plot as operator_plot,
)
from .profile import (
    profile_notes as profile_notes,
)
