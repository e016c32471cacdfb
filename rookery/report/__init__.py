"""Tables, figures and the page of a comparison."""

from rookery.report.figures import plot_curves
from rookery.report.page import write_page
from rookery.report.tables import final_table
from rookery.report.tuning import tuning_table

__all__ = ["final_table", "plot_curves", "tuning_table", "write_page"]
