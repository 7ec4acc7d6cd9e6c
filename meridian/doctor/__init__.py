"""Is it me or the library? One report on a model, its prompts, the backends that run it, and what a whole run will cost."""

from meridian.doctor.examination import examine_model
from meridian.doctor.report import Report
from meridian.doctor.tables import show

__all__ = ["Report", "examine_model", "show"]
