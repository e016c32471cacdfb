"""Tables in Markdown, line by line."""

from collections.abc import Sequence


def table_head(cells: Sequence[str]) -> list[str]:
    """The names of the columns and the line under them."""
    return [table_row(cells), "|" + "---|" * len(cells)]


def table_row(cells: Sequence[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"
