"""Is it me or the library? One report on a model, its prompts, the backends that run it, and what a whole run will cost."""

from circuits.doctor.examination import examine
from circuits.doctor.report import Report
from circuits.doctor.tables import show

__all__ = ["Report", "examine", "show"]
