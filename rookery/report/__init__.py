"""Tables and figures."""

from rookery.report.figures import plot_curves
from rookery.report.tables import final_table

__all__ = ["final_table", "plot_curves"]
