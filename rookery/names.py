"""Names that a user types."""

import difflib
from collections.abc import Iterable


def unknown(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not known, with the nearest and all that are."""
    by_lower = {each.lower(): each for each in known}
    starts = [each for each in by_lower if name and each.startswith(name.lower())]
    close = starts or difflib.get_close_matches(name.lower(), by_lower, 1, 0.4)
    hint = f"; did you mean {by_lower[close[0]]!r}?" if close else "."
    return f"there is no {name!r}{hint} There are: {', '.join(by_lower.values()) or 'none'}"
