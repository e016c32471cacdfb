"""Clients as an operator lists them."""


def partitions(text: str, name: str) -> list[int]:
    """Numbers of clients from ``0,3`` or ``0-4`` or both; ``name`` says where the text stood."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ValueError(f"{name} must be numbers and ranges like 0,3 or 0-4, got {text!r}")
        found += range(int(low), int(high) + 1) if dash else [int(low)]
    return found
