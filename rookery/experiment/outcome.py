"""What a run leaves for people, when it is done: tables, a model, what a report shows, and what simple rivals reach."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rookery.experiment.settings import Settings
from rookery.files import write
from rookery.models.stored import save_model
from rookery.solving.solution import Solution
from rookery.stopping import heard, stop_if_asked
from rookery.tasks import Task
from rookery.tasks.rivals import Effort, hold

LEARNED, RIVALS, MODEL = "learned.json", "rivals.json", "model.safetensors"


def write_learned(folder: Path, task: Task, solution: Solution) -> list[str]:
    """Writes what the first seed has learned; returns the names of the files for people. Nothing of a seed that diverged."""
    if task.learned is None or any(each.lane in (None, 0) for each in solution.diverged):
        return []
    first = solution if solution.lanes is None else solution.lane(0)
    learned = task.learned(first.x, first.y)
    for name, rows in learned.tables.items():
        write(folder / name, rows.as_csv().encode())
    names = list(learned.tables)
    if learned.model is not None:
        save_model(folder / MODEL, learned.model.network, dict(learned.model.about))
        names.append(MODEL)
    write(folder / LEARNED, json.dumps({"seed": 0, "exhibits": list(learned.exhibits)}, allow_nan=False).encode())
    return names


def write_rivals(folder: Path, settings: Settings, tasks: Sequence[Task] | None = None) -> None:
    """Trains the simple rivals of a task, as many rounds as the run has, and writes what they reach."""
    tasks = settings.make_tasks() if tasks is None else tasks
    contests = [task.contest for task in tasks if task.contest is not None]
    if len(contests) < len(tasks):
        return
    apart = replace(settings, held_out=True, seeds=1).make_tasks()[0]
    effort = Effort(
        rounds=settings.rounds,
        seeds=range(settings.seed, settings.seed + settings.seeds),
        participation=settings.participation,
        local_steps=settings.steps,
        batch_size=settings.batch_size,
    )
    metric, higher = tasks[0].metric, tasks[0].higher_is_better
    began = time.perf_counter()
    with heard(at_once=True):
        stop_if_asked()
        found = hold(contests, apart.contest, effort, *tasks[0].searched)
    told = {
        "metric": metric,
        "higher_is_better": higher,
        "seconds": round(time.perf_counter() - began, 3),
        "rivals": [each.tables() for each in found],
    }
    write(folder / RIVALS, json.dumps(told, allow_nan=False).encode())
