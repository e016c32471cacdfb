"""Rules, privacy and secure sums as text: in a command's options, and in the file of a run's settings."""

import ast
from collections.abc import Mapping
from typing import Any

from rookery.aggregation.privacy import AdaptiveClip, ClientPrivacy
from rookery.aggregation.robust import (
    CenteredClip,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormClip,
    Rule,
    TrimmedMean,
)

RULES: dict[str, type[Rule]] = {
    kind.__name__: kind for kind in (TrimmedMean, Median, GeometricMedian, Krum, MultiKrum, NormClip, CenteredClip)
}


def read_rule(text: str) -> Rule:
    """A robust rule: ``TrimmedMean(0.2)``, ``Median``, ``MultiKrum(f=2, m=3)``."""
    rule: Rule = _made(text, RULES, "aggregate", "TrimmedMean(0.2)")
    return rule


def read_privacy(text: str) -> ClientPrivacy:
    """Privacy: ``clip=0.5, noise=1.0, delta=1e-5``, with ``clip=AdaptiveClip()`` where the clip is to find itself."""
    known = {"ClientPrivacy": ClientPrivacy, "AdaptiveClip": AdaptiveClip}
    privacy: ClientPrivacy = _made(f"ClientPrivacy({text})", known, "privacy", "clip=0.5, noise=1.0, delta=1e-5")
    return privacy


class _Wrong(Exception):
    """What was made of a text that can be read has a wrong value."""


def _made(text: str, known: Mapping[str, Any], name: str, example: str) -> Any:
    """What a call (or a name alone) of something known makes, with numbers and words as arguments."""

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Call(func=ast.Name(id=kind), args=args, keywords=more) if kind in known:
                return made(kind, *map(value, args), **{str(each.arg): value(each.value) for each in more})
            case ast.Name(id=kind) if kind in known:
                return made(kind)
            case _:
                return ast.literal_eval(node)

    def made(kind: str, /, *args: Any, **more: Any) -> Any:
        try:
            return known[kind](*args, **more)
        except TypeError as error:
            raise _Wrong(f"{str(error).replace('.__init__()', '()')} in {text!r}") from None
        except ValueError as error:
            raise _Wrong(str(error).removeprefix(f"{name}: ")) from None

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except _Wrong as error:
        raise ValueError(f"{name}: {error}") from None
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        names = ", ".join(known)
        raise ValueError(f"{name} must be written such as {example} (known: {names}), got {text!r}") from None
