"""What a page is: parameters, what it measures, shows and concludes, here and from records."""

from ortmeter.evidence import Estimate, Finding, Speedups
from ortmeter.study.args import Param
from ortmeter.study.rendering import show, table, to_frame
from ortmeter.study.study import Study
from ortmeter.study.writer import Writer, enumerate_items

__all__ = [
    "Estimate",
    "Finding",
    "Param",
    "Speedups",
    "Study",
    "Writer",
    "enumerate_items",
    "show",
    "table",
    "to_frame",
]
