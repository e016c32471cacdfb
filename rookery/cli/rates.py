"""Rates that a command searches for before it runs anything."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from rookery.cli.output import note_on_test_data
from rookery.experiment.settings import Settings
from rookery.experiment.source import OfModule
from rookery.experiment.tuned import FILE, Budget, find_rates, has_rates
from rookery.report.tuning import tuning_table
from rookery.tuning.tune import Unit


def as_unit(text: str) -> Unit:
    """What a budget is counted in."""
    if text not in ("rounds", "calls", "bytes"):
        raise ValueError(f"--unit must be rounds, calls or bytes, got {text!r}")
    return text  # type: ignore[return-value]


def tuned(
    all_settings: Sequence[Settings],
    folder: Path,
    budget: Budget,
    *,
    no_tune: bool = False,
    as_json: bool = False,
    given: Sequence[str] | None = None,
    keep: bool = False,
) -> tuple[list[Settings], bool]:
    """The settings with rates, and whether any were searched for, which is then shown.

    ``given`` names the algorithms whose rates are as the user wants them; None: those of all that have any. With ``keep``
    the same search in the same folder finds the same again without computing it.
    """
    if no_tune:
        return list(all_settings), False
    chosen = [each for each in all_settings if (not has_rates(each) if given is None else each.algorithm not in given)]
    if not chosen:
        return list(all_settings), False
    found, tuning = find_rates(
        chosen, folder, budget, again=given is not None, keep=keep, ready=lambda: tell_of_test_data(chosen[0])
    )
    by_name = {each.algorithm: each for each in found}
    if tuning is not None and not as_json:
        Console(stderr=True).print(tuning_table(json.loads((folder / FILE).read_text(encoding="utf-8"))))
        for remark in tuning.remarks:
            print(f"Note: {remark}.", file=sys.stderr)
    return [by_name.get(each.algorithm, each) for each in all_settings], True


def tell_of_test_data(settings: Settings) -> None:
    """Says where a search is judged by the same data as the runs after it."""
    if note := note_on_test_data(settings):
        print(note, file=sys.stderr)


def rates_from(settings: Settings) -> str:
    """What ``config.toml`` tells of where the rates come from: nothing where they are given, stored or found."""
    return "" if has_rates(settings) else "default"


def rates_given(all_settings: Sequence[Settings]) -> list[str]:
    """The algorithms whose rates are the user's: in a module or a TOML file, or with --set, and not the task's own."""
    return [each.algorithm for each in all_settings if has_rates(each) and not _is_stored(each)]


def _is_stored(settings: Settings) -> bool:
    source = settings.source
    if isinstance(source, OfModule):
        return False
    stored = source.defaults(settings.dataset, settings.options, settings.seed, settings.held_out).rates
    return dict(settings.rates) == dict(stored.get(settings.algorithm, {}))
