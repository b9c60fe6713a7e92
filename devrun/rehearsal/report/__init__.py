"""`devrun report` as a library: recorded runs as data, as a table and as a page."""

from devrun.rehearsal.report.data import comparison, plain, report_data
from devrun.rehearsal.report.html import page

__all__ = ["comparison", "page", "plain", "report_data"]
