"""TensorBoard event files, beside a run's own history."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rookery.solving.history import History


def event_writer(folder: Path) -> Callable[..., None]:
    """Writes each new row of a run's history into ``folder/tensorboard``, a folder of its own for each seed."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise ValueError("--tensorboard needs the package tensorboardX: pip install 'rookery[tensorboard]'") from None
    writers: dict[int, Any] = {}

    def watch(state: Any, history: History) -> None:
        last = history.last
        names = [name for name in last if name != "round"]
        for lane in range(max(np.size(last[name]) for name in names)):
            if lane not in writers:
                writers[lane] = SummaryWriter(str(folder / "tensorboard" / f"seed-{lane}"))
            for name in names:
                values = np.atleast_1d(last[name])
                writers[lane].add_scalar(name, float(values[min(lane, len(values) - 1)]), int(state.round))
            writers[lane].flush()

    return watch
