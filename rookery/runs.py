"""A run on disk: configuration, history, checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery.history import History


@dataclass(frozen=True)
class Run:
    """What a folder of a run holds. ``config`` has the tables [run], [task], [algorithm] and [environment]."""

    path: Path
    config: Mapping[str, Any]
    history: History

    @property
    def name(self) -> str:
        """What to call it in a table: the algorithm."""
        return str(self.config["run"]["algorithm"])
