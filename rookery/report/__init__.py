"""Tables, figures and the page of a comparison."""

from rookery.report.concluding import conclusion
from rookery.report.figures import plot_curves, plot_picture
from rookery.report.page import write_page
from rookery.report.rivals import Rival, find_rivals
from rookery.report.tables import final_table, rivals_table
from rookery.report.tuning import tuning_table

__all__ = [
    "Rival",
    "conclusion",
    "final_table",
    "find_rivals",
    "plot_curves",
    "plot_picture",
    "rivals_table",
    "tuning_table",
    "write_page",
]
