"""What a history says about how a run went, in sentences."""

from collections.abc import Sequence

import numpy as np

from rookery.engines.base import Stopped
from rookery.solving.history import History

AFTER = 5
"""Evaluations after a peak, before anything is said about it."""
LEAST = 0.01
"""Falls by a smaller part of the peak's value are not worth a sentence, however little noise there is."""

_TRAINING = ("upper_loss", "lower_loss", "objective")
"""What is evaluated by default, on the clients' own data."""


def remarks_of(
    history: History,
    metric: str,
    higher_is_better: bool,
    lanes: int | None = None,
    stopped: Sequence[Stopped] = (),
    kept: np.ndarray | int | None = None,
) -> tuple[str, ...]:
    """What there is to say about a run, or about each lane of a batch, that was not stopped.

    ``kept`` is the round of the best iterate, for each lane, if that may be another than the history's: of a run that
    was continued with another metric.
    """
    if not len(history) or metric not in history.columns:
        return ()
    ended = {each.lane for each in stopped}
    found = []
    for lane in [None] if lanes is None else range(lanes):
        own = history if lane is None else history.lane(lane)
        mine = None if kept is None else int(np.atleast_1d(kept)[lane or 0])
        told = None if lane in ended else past_its_peak(own["round"], own[metric], metric, higher_is_better, mine)
        if told is not None:
            found.append(told if lane is None or lanes == 1 else f"{_of(lane)}{told}")
    return tuple(found)


def of_lane(remarks: Sequence[str], lane: int) -> tuple[str, ...]:
    """Those of a batch that are about this lane, or about all."""
    mine = _of(lane)
    about_one = [told.startswith("lane ") and told.split(":")[0].removeprefix("lane ").isdigit() for told in remarks]
    return tuple(
        told.removeprefix(mine)
        for told, one in zip(remarks, about_one, strict=True)
        if not one or told.startswith(mine)
    )


def past_its_peak(
    rounds: np.ndarray, values: np.ndarray, metric: str, higher_is_better: bool, kept: int | None = None
) -> str | None:
    """A sentence, if a metric has fallen since its peak by more than its noise; None otherwise.

    Peak and end are taken as medians of neighbours, so that one evaluation that stands out is neither. A fall counts if it
    is some four times as large as the difference of successive evaluations after the peak (a plateau's own highest point
    is about three above its middle), and half as large again as any fall before the peak or any rise after it: a metric
    that wanders slowly has those too.
    """
    fine = np.isfinite(np.asarray(values, float))
    rounds, raw = np.asarray(rounds)[fine], np.asarray(values, float)[fine]
    good = raw if higher_is_better else -raw
    peak = int(good.argmax()) if len(good) else 0
    after = good[peak + 1 :]
    if len(after) < AFTER:
        return None
    padded = np.concatenate([good[:1], good, good[-1:]])
    smooth = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    rising, falling = smooth[: peak + 1], smooth[peak + 1 :]
    setback = float((np.maximum.accumulate(rising) - rising).max())
    recovery = float((falling - np.minimum.accumulate(falling)).max())
    noise = float(np.median(np.abs(np.diff(after)))) * (4 + 8 / len(after))  # which few evaluations tell badly
    level = float(smooth.max())
    fall = level - float(np.median(after[-max(3, len(after) // 3) :]))
    if not fall > max(noise, 1.5 * setback, 1.5 * recovery, LEAST * abs(level)):
        return None
    at, last = f"{raw[peak]:.4g}", f"{raw[-1]:.4g}"
    since = f"has {'fallen' if higher_is_better else 'risen'} to {last} since"
    if rounds[peak] == 0:
        name, told = "start", f"was best at the start, {at}, and {since}"
    elif higher_is_better:
        name, told = "peak", f"peaked at {at} in round {rounds[peak]:.0f} and {since}"
    else:
        name, told = "lowest", f"was lowest, {at}, in round {rounds[peak]:.0f} and {since}"
    why = "what is learned from the validation data no longer holds on held-out data"
    if rounds[peak] == 0:
        why = "the rates may be too large, or higher_is_better wrong"
    elif metric in _TRAINING:
        why = "smaller rates may keep it there"
    has_it = f"; solution.best has the {name}" if kept is None or kept == rounds[peak] else ""
    return f"{metric} {told}: {why}{has_it}"


def _of(lane: int) -> str:
    return f"lane {lane}: "
