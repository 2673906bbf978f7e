"""A report: what was asked, tables and plots, sentences computed from them, the machine."""

from ortmeter.report.document import Report, Section

__all__ = ["Report", "Section"]
