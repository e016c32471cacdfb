"""What a federation does about participants that fail."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rookery.aggregation.secure.options import LEAST, SecureSum
from rookery.engines.base import EngineError
from rookery.problem.participation import Participation, Uniform

SILENCE = 30.0
"""Seconds before a node that did not answer is greeted again: a SuperLink lists one that was killed for another minute."""


class FederationError(EngineError):
    """A federation that cannot go on: too few clients, or nodes that do not fit the run."""


@dataclass(frozen=True)
class Rules:
    """What a federation does about participants that fail.

    quorum           the least share (a float in (0, 1]) or number of a draw's participants whose uploads are counted;
                     below it the round is repeated with other participants
    attempts         how often a round is tried in all
    deadline         seconds to wait for the uploads of an exchange
    over_selection   how many times more participants are asked than are wanted; the first to answer are counted
    patience         seconds to wait for all clients to be there at the start
    pause            seconds before a round is repeated, doubled each time up to 30
    collect          whether what clients keep comes to the server at the end, so that the solution is that of the
                     simulator; without it, it never leaves them
    secure           how uploads are summed so that the server sees their sum alone; None: it sees each
    """

    quorum: float | int = 0.5
    attempts: int = 5
    deadline: float = 120.0
    over_selection: float = 1.0
    patience: float = 60.0
    pause: float = 1.0
    collect: bool = True
    secure: SecureSum | None = None

    def __post_init__(self) -> None:
        whole = isinstance(self.quorum, int) and not isinstance(self.quorum, bool) and self.quorum >= 1
        if not whole and not (isinstance(self.quorum, float) and 0 < self.quorum <= 1):
            raise ValueError(f"quorum must be a fraction in (0, 1] or a number of at least 1, got {self.quorum!r}")
        if not isinstance(self.attempts, int) or self.attempts < 1:
            raise ValueError(f"attempts must be an integer of at least 1, got {self.attempts!r}")
        for name, least in (("deadline", 0), ("patience", 0), ("pause", 0), ("over_selection", 1)):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value) or value < least:
                raise ValueError(f"{name} must be a number of at least {least}, got {value!r}")
        if self.deadline == 0:
            raise ValueError("deadline must be positive, got 0")
        if isinstance(self.secure, Mapping):  # as a run's folder has it
            object.__setattr__(self, "secure", SecureSum(**self.secure))
        if self.secure is not None and not isinstance(self.secure, SecureSum):
            raise TypeError(f"secure must be rk.SecureSum(...) or None, got {self.secure!r}")
        if self.secure is not None and self.over_selection != 1:
            raise ValueError(
                "over_selection must be 1 with secure sums: a node that is not waited for takes others' masks with it, "
                f"got {self.over_selection}"
            )

    @property
    def ours(self) -> bool:
        """Whether whoever runs the server runs all nodes: then one that cannot take part ends the run at once."""
        return True

    def pause_after(self, attempt: int) -> float:
        """Seconds after a failed attempt. After ``SILENCE`` all nodes are greeted again: to wait longer helps nobody."""
        return min(self.pause * 2.0**attempt, max(self.pause, SILENCE))

    def check_nodes(self, nodes: int) -> None:
        """Raises unless there can be a secure sum of so many nodes, if sums are secure."""
        if self.secure is not None and nodes < LEAST:
            raise ValueError(
                f"secure sums must have at least {LEAST} nodes: of two, each learns the other's upload from the sum, "
                f"got {nodes}"
            )

    def needed(self, wanted: int) -> int:
        """The quorum of a draw of so many participants."""
        return min(self.quorum if isinstance(self.quorum, int) else math.ceil(self.quorum * wanted - 1e-9), wanted)

    def asked(self, participation: Participation, n: int) -> Participation:
        """The participants that are asked where so many are wanted: ``over_selection`` times as many."""
        if self.over_selection == 1:
            return participation
        if not isinstance(participation, Uniform):
            raise ValueError(
                f"over_selection must be 1 unless participation is rk.Uniform(...), got {self.over_selection}"
            )
        return Uniform(min(n, math.ceil(self.over_selection * participation.count - 1e-9)))
