"""The ``rookery`` command."""

import json
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np
import typer
import typer.core
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from rookery import __version__
from rookery.algorithms.registry import registry
from rookery.catalogue import catalogue
from rookery.cli import data, deploy
from rookery.cli.demo import run_demo
from rookery.cli.node import node
from rookery.datasets import DATASETS
from rookery.engines.flower.engine import Flower
from rookery.experiment.environment import usable_cores
from rookery.experiment.folder import StoredRun, find_runs, read_run
from rookery.experiment.running import resume_run, start_run
from rookery.experiment.settings import (
    Settings,
    assignments,
    parse_value,
    read_settings,
    recipe_of,
    resolve,
    write_toml,
)
from rookery.experiment.sweep import at_edges, best, best_settings, grid, random_rates, sweep
from rookery.report import final_table, plot_curves, write_page
from rookery.reproduction.experiment import (
    Cell,
    Experiment,
    compute_all,
    draw,
    experiment,
    experiments,
    stored,
    to_tune,
    verdicts,
)
from rookery.reproduction.experiment import rows as reproduction_rows
from rookery.reproduction.experiment import save as save_cell
from rookery.reproduction.experiment import tune as tune_method
from rookery.reproduction.experiment import write_docs as write_reproduction
from rookery.solving.history import History
from rookery.solving.solution import Solution
from rookery.stopping import Interrupted, asked, end, heard
from rookery.tasks import RECIPES


class _OneLineErrors(typer.core.TyperGroup):
    """Bad input is one line on stderr and exit status 2; --debug shows where it was raised. A warning is a line too."""

    def main(self, *args: Any, standalone_mode: bool = True, **more: Any) -> Any:
        try:
            code = super().main(*args, **{**more, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            if message := error.format_message():  # Typer has shown the help already
                typer.echo(message)
            code = 2
        except click.UsageError as error:
            typer.echo("Error: " + " ".join(error.format_message().split()), err=True)
            code = 2
        except click.Abort as error:
            code = _told(error.__cause__)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _one_line  # type: ignore[assignment]
                return super().invoke(ctx)
        except (ValueError, TypeError, OSError, ImportError) as error:
            if ctx.params.get("debug") or isinstance(error, click.ClickException):
                raise
            told = [str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))]
            typer.echo("Error: " + " ".join(" ".join(told).split()), err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt as stopped:
            raise typer.Exit(_told(stopped)) from None


def _told(stopped: BaseException | None) -> int:
    """Says in one line what stopped the command and how to go on; the exit status."""
    status = stopped.status if isinstance(stopped, Interrupted) else 130
    word = "Interrupted." if status == 130 else "Terminated."
    typer.echo(" ".join([word, *getattr(stopped, "__notes__", ())]), err=True)
    return status


def _one_line(message: Warning | str, *_: Any) -> None:
    typer.echo("Warning: " + " ".join(str(message).split()), err=True)


app = typer.Typer(
    cls=_OneLineErrors,
    help="Rookery: federated nested optimization (bilevel, minimax, client weighting).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(data.app, name="data", help="Data sets: list, fetch, verify.")
app.add_typer(deploy.app, name="deploy")
app.command()(node)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rookery {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    return lambda incomplete: [name for name in known if name.lower().startswith(incomplete.lower())]


Dataset = Annotated[str | None, typer.Option(help="Data set.", autocompletion=_names(DATASETS))]
Clients = Annotated[int | None, typer.Option(help="Number of clients.")]
Participants = Annotated[
    str | None, typer.Option(help="Clients in a round: a number, a probability of taking part like 0.5, or all.")
]
LocalSteps = Annotated[str | None, typer.Option(help="Local steps: a number, or a range like 5-15.")]
BatchSize = Annotated[str | None, typer.Option(help="Of minibatches: a number, all, or LOWER,UPPER.")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
Every = Annotated[int | None, typer.Option(help="Rounds between evaluations.")]
Seed = Annotated[int | None, typer.Option(help="The first seed.")]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds, in one program.")]
AtOnce = Annotated[int | None, typer.Option(help="Clients computed at a time, where memory asks for it.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="NAME=VALUE: an option of the task or a rate of the algorithm.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for machines.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard event files too.")]
Folder = Annotated[Path, typer.Argument(help="The folder of a run.")]
CheckpointSeconds = Annotated[float, typer.Option(min=0, help="Least time between checkpoints, in seconds.")]


def _common(**options: Any) -> dict[str, Any]:
    return options


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="A task, or a TOML file of settings.", autocompletion=_names(RECIPES))],
    algorithm: Annotated[str | None, typer.Option(autocompletion=_names(registry), help="Algorithm.")] = None,
    dataset: Dataset = None,
    clients: Clients = None,
    participants: Participants = None,
    local_steps: LocalSteps = None,
    batch_size: BatchSize = None,
    rounds: Rounds = None,
    every: Every = None,
    seed: Seed = None,
    seeds: Seeds = None,
    clients_at_once: AtOnce = None,
    out: Annotated[Path | None, typer.Option(help="Where the run goes; by default a new folder in runs/.")] = None,
    set_: Set = None,
    checkpoint_seconds: CheckpointSeconds = 10.0,
    tensorboard: TensorBoard = False,
    engine: Annotated[str, typer.Option(help="simulator, or flower: real nodes on this machine.")] = "simulator",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes to start, with --engine flower.")] = 2,
    as_json: Json = False,
) -> None:
    """Run an algorithm on TASK (see rookery list tasks) or as a TOML file says; leaves a folder with its configuration,
    history, checkpoints and result.

    Examples:

      rookery run hyper-representation

      rookery run data-cleaning --algorithm FedBiOAcc --dataset mnist --seeds 3 --set eta_x=0.1

      rookery run best.toml --seeds 10 --out runs/final

      rookery run hyper-representation --rounds 20 --engine flower --nodes 2
    """
    given = _common(
        algorithm=algorithm, dataset=dataset, clients=clients, participants=participants, local_steps=local_steps,
        batch_size=batch_size, rounds=rounds, every=every, seed=seed, seeds=seeds, clients_at_once=clients_at_once,
    )  # fmt: skip
    settings = _settings(task, given, set_ or [])
    folder = _new_folder(settings) if out is None else out
    watch = _tensorboard(folder) if tensorboard else None
    how: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds, "watch": watch}
    if engine not in ("simulator", "flower"):
        raise ValueError(f"--engine must be simulator or flower, got {engine!r}")
    if engine == "flower":
        how["engine"] = Flower(nodes=nodes)
    _finish(folder, lambda: start_run(settings, folder, _command(), **how), as_json)


@app.command()
def resume(
    folder: Folder,
    checkpoint_seconds: CheckpointSeconds = 10.0,
    tensorboard: TensorBoard = False,
    as_json: Json = False,
) -> None:
    """Go on with a run that was interrupted; it ends with the iterates it would have had.

    Example: rookery resume runs/hyper-representation-MeFBO-1
    """
    if (folder / "result.safetensors").exists():
        typer.echo(f"{folder} is finished.", err=True)
    watch = _tensorboard(folder) if tensorboard else None
    how: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds, "watch": watch}
    _finish(folder, lambda: resume_run(folder, **how), as_json)


@app.command()
def compare(
    task: Annotated[str, typer.Argument(help="A task.", autocompletion=_names(RECIPES))],
    algorithms: Annotated[str, typer.Option("--algorithms", help="Their names, with commas between them.")],
    dataset: Dataset = None,
    clients: Clients = None,
    participants: Participants = None,
    local_steps: LocalSteps = None,
    batch_size: BatchSize = None,
    rounds: Rounds = None,
    every: Every = None,
    seed: Seed = None,
    seeds: Seeds = None,
    clients_at_once: AtOnce = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs go; by default a new folder in runs/.")] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Run several algorithms on a task, on the same footing: a table, a figure and a report.

    Example: rookery compare hyper-representation --algorithms MeFBO,FedBiO,SimFBO --seeds 3
    """
    given = _common(
        dataset=dataset, clients=clients, participants=participants, local_steps=local_steps, batch_size=batch_size,
        rounds=rounds, every=every, seed=seed, seeds=seeds, clients_at_once=clients_at_once,
    )  # fmt: skip
    chosen = [name.strip() for name in algorithms.split(",") if name.strip()]
    all_settings = [_settings(task, {**given, "algorithm": name}, set_ or []) for name in chosen]
    names = [settings.algorithm for settings in all_settings]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"--algorithms must be different names with commas between them, got {algorithms!r}")
    folder = _new_place(f"{all_settings[0].task}-comparison") if out is None else out
    with _goes_on_with(f"Go on with: {_command()}" + (f" --out {shlex.quote(str(folder))}" if out is None else "")):
        for settings in all_settings:
            where = folder / settings.algorithm
            if (where / "config.toml").exists():
                resume_run(where)
            else:
                start_run(settings, where)
    runs = find_runs([folder / name for name in names])
    page, figure = _write_report(runs, folder / "report.html")
    if as_json:
        typer.echo(json.dumps({each.name: _final(each) for each in runs}, indent=2))
        return
    _show(runs)
    Console().print(f"Report: {page}\nFigure: {figure}")


@app.command("sweep")
def sweep_command(
    task: Annotated[str, typer.Argument(help="A task, or a TOML file of settings.", autocompletion=_names(RECIPES))],
    grid_: Annotated[
        list[str] | None,
        typer.Option("--grid", help="NAME=V1,V2,…: values to try, in all combinations; NAME+NAME together."),
    ] = None,
    random: Annotated[
        list[str] | None, typer.Option("--random", help="NAME=LOW..HIGH: draw log-uniformly; needs --trials.")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="How many configurations to draw.")] = None,
    algorithm: Annotated[str | None, typer.Option(autocompletion=_names(registry), help="Algorithm.")] = None,
    dataset: Dataset = None,
    clients: Clients = None,
    participants: Participants = None,
    local_steps: LocalSteps = None,
    batch_size: BatchSize = None,
    rounds: Rounds = None,
    seed: Seed = None,
    seeds: Seeds = None,
    clients_at_once: AtOnce = None,
    lanes: Annotated[int, typer.Option(min=1, help="Runs in a program at once.")] = 16,
    out: Annotated[Path | None, typer.Option(help="Where sweep.csv and best.toml go.")] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Search over the rates of an algorithm on TASK (or as a TOML file says), scored on held-out training data.

    Examples:

      rookery sweep hyper-representation --algorithm FedBiO --grid eta_x=0.03,0.1,0.3 --grid eta_y=0.1,0.3

      rookery sweep fair-classification --random eta_x=0.001..1 --trials 20 --seeds 3
    """
    given = _common(
        algorithm=algorithm, dataset=dataset, clients=clients, participants=participants, local_steps=local_steps,
        batch_size=batch_size, rounds=rounds, seed=seed, seeds=seeds, clients_at_once=clients_at_once,
    )  # fmt: skip
    settings = _settings(task, given, set_ or [])
    if bool(grid_) == bool(random):
        raise ValueError("sweep needs either --grid NAME=V1,V2 or --random NAME=LOW..HIGH with --trials")
    values, ranges = dict(_values(each) for each in grid_ or []), dict(_range(each) for each in random or [])
    if random:
        if trials is None:
            raise ValueError("--random needs --trials, how many configurations to draw")
        tried = random_rates(ranges, trials, settings.seed)
    else:
        tried = grid(values)
    with _goes_on_with(f"Nothing of a sweep is kept; start it again with: {_command()}"):
        results = sweep(settings, tried, lanes, progress=None if sys.stderr.isatty() else False)
    made = settings.make_tasks()[0]
    winner = best(results, made.higher_is_better)
    edges = at_edges(winner, values, ranges)
    folder = _new_place(f"{settings.task}-{settings.algorithm}-sweep") if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    History([{**t.rates, made.metric: t.scores, "mean": t.mean} for t in results]).to_csv(folder / "sweep.csv")
    write_toml(folder / "best.toml", best_settings(settings, winner).tables())
    if as_json:
        rows = [{"rates": dict(t.rates), "mean": t.mean, "scores": t.scores.tolist()} for t in results]
        told = {"trials": rows, "best": dict(winner.rates), "at_edge": edges, "file": str(folder / "best.toml")}
        typer.echo(json.dumps(told))
        return
    table = Table(title=f"{settings.algorithm} on {settings.task}/{settings.dataset}, held-out {made.metric}")
    for column in (*tried[0], "mean", "deviation"):
        table.add_column(column, justify="right")
    for trial in results:
        cells = [f"{value:.4g}" for value in (*trial.rates.values(), trial.mean)]
        table.add_row(
            *cells,
            "–" if trial.deviation is None else f"{trial.deviation:.4g}",
            style="bold" if trial is winner else "",
        )
    Console().print(table)
    Console().print(f"Best: {folder / 'best.toml'} (rookery run {shlex.quote(str(folder / 'best.toml'))})")
    for name, edge in edges.items():
        beyond = "smaller" if edge == "smallest" else "larger"
        Console().print(f"The best {name} is among the {edge} that were tried: try {beyond} ones as well.")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold such folders.")],
    out: Annotated[Path, typer.Option(help="The HTML page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Its title.")] = None,
) -> None:
    """Make one self-contained HTML page, a PNG and a PDF figure from any number of runs.

    Example: rookery report runs/* --out report.html
    """
    runs = find_runs(folders)
    empty = [str(each.path) for each in runs if not len(each.history)]
    if empty:
        raise ValueError(f"no evaluation yet in {', '.join(empty)}")
    page, figure = _write_report(runs, out, title)
    _show(runs)
    Console().print(f"Report: {page}\nFigure: {figure}")


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment, such as E1, or all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version: fewer seeds and rounds.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this SETTING/METHOD, or all that contain it.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search the grids first, on held-out training data; needs --presets.")
    ] = False,
    presets: Annotated[
        Path | None,
        typer.Option(help="A folder of presets of your own, before those of the package; --tune writes there."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Compute also what is stored.")] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="Show all experiments with the expected time on 2 cores.")
    ] = False,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Write docs/reproduction.md from what is stored.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where results are stored.")] = Path("reproduction"),
    lanes: Annotated[int, typer.Option(min=1, help="Runs in a program at once, in --tune.")] = 8,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Cells computed at the same time, each on its own core.", show_default="as many as cores"
        ),
    ] = None,
) -> None:
    """Reproduce experiment NAME of a paper: the published numbers beside ours. What is stored is not computed again.

    Examples:

      rookery reproduce --list

      rookery reproduce E1 --only iid/MeFBO

      rookery reproduce E6 --quick

      rookery reproduce E5 --tune --presets mine

      rookery reproduce all
    """
    if tune and presets is None:
        raise ValueError("--tune needs --presets FOLDER: the presets with the rates that it finds go there")
    if presets is not None and not (tune or presets.is_dir()):
        raise ValueError(f"--presets {presets}: there is no such folder")
    if list_:
        table = Table()
        for column in ("experiment", "what", "paper", "cells", "stored", "minutes"):
            table.add_column(column)
        for each in experiments(presets).values():
            cells = each.cells()
            have = sum(stored(cell, out) is not None for cell in cells)
            minutes = str(each.preset.get("minutes", "?"))
            table.add_row(each.name, each.title, each.preset["paper"], str(len(cells)), str(have), minutes)
        Console().print(table)
        return
    if write_docs:
        page = Path("docs/reproduction.md")
        write_reproduction(out, page)
        Console().print(f"Written: {page}")
        return
    if name is None:
        raise ValueError("reproduce needs the name of an experiment, or --list, or --write-docs")
    size = "quick" if quick else "full"
    names = list(experiments(presets)) if name == "all" else [name]
    if not any(experiment(each, presets).cells(size, only or ()) for each in names):
        raise ValueError(f"--only {' '.join(only or ())}: no cell of {name} has this in its SETTING/METHOD")
    with _goes_on_with(f"What is done is stored. Go on with: {_command()}"):
        if tune and presets is not None:
            for searched in names:
                for setting, method in to_tune(experiment(searched, presets), size, only or ()):
                    found = tune_method(searched, method, setting, presets, size, lanes)
                    Console().print(f"{setting}/{method}: {found or 'every configuration diverged'}")
        known = experiments(presets)
        chosen = [known[each] for each in names if known[each].cells(size, only or ())]
        _compute(chosen, size, only or (), again, out, jobs or usable_cores())
    for which in chosen:
        _show_experiment(which, out, size)
        figure = out / f"{which.name}.png"
        draw(which, out, figure, size)
        Console().print(f"Curves: {figure}")


def _compute(chosen: Sequence[Experiment], size: str, only: Sequence[str], again: bool, out: Path, jobs: int) -> None:
    """Computes and stores the cells that are not stored yet, and tells of each that is done."""
    due = [(which, cell) for which in chosen for cell in which.cells(size, only) if again or stored(cell, out) is None]
    if not due:
        return
    many = min(jobs, len(due)) > 1  # else the run shows its own progress
    columns = (*Progress.get_default_columns()[:-1], TimeElapsedColumn())
    with Progress(*columns, transient=True, disable=not many) as bar:
        shown = bar.add_task(f"{len(due)} cells, {jobs} at once", total=len(due))

        def done(cell: Cell, result: dict[str, Any]) -> None:
            save_cell(cell, result, out)
            bar.advance(shown)
            bar.console.print(f"{cell.experiment} {cell.setting}/{cell.method}: {result['seconds']:.0f} s")

        compute_all(due, jobs, done)


def _show_experiment(which: Experiment, out: Path, size: str) -> None:
    told = "" if size == "full" else " (a smaller version)"
    rows = reproduction_rows(which, out, size)
    below = "below each what was published" if any(any(row.published) for row in rows) else None
    table = Table(title=f"{which.name}: {which.title}{told}", caption=below)
    for column in ("setting", "method", *map(str, which.at(size)), *which.also):
        table.add_column(column, justify="left" if column in ("setting", "method") else "right")
    for row in rows:
        method = row.method + (f" ({row.note})" if row.note else "")
        pairs = zip(row.ours, row.published, strict=True)
        values = [f"{ours}\n[dim]{published}[/dim]" if published else ours for ours, published in pairs]
        table.add_row(row.setting, method, *values, *row.also)
    Console().print(table)
    for v in verdicts(which, out, size):
        Console().print(f"{v.setting}: {v.better} better than {v.worse}: {v.difference:+.3g}, p: {v.told}, {v.holds}")


@app.command("list")
def list_command(
    what: Annotated[str, typer.Argument(help="algorithms, tasks or datasets.")] = "algorithms",
    as_json: Json = False,
) -> None:
    """List algorithms, tasks or data sets.

    Example: rookery list tasks
    """
    rows: list[dict[str, Any]]
    if what == "algorithms":
        rows = [
            {
                "algorithm": e.name, "class": e.kind, "problem": e.solves, "exchanges": e.exchanges,
                "2nd derivatives": "yes" if e.second_derivatives else "no",
                "unequal steps": "yes" if e.unequal_steps else "no", "constraints": e.constraints,
                "paper": e.paper, "status": e.status,
            }
            for e in catalogue()
        ]  # fmt: skip
    elif what == "tasks":
        rows = [
            {"task": r.name, "what": r.summary, "data sets": ", ".join(r.defaults), "options": ", ".join(r.options)}
            for r in RECIPES.values()
        ]
    elif what == "datasets":
        rows = [{"data set": name, "what": each.summary} for name, each in DATASETS.items()]
    else:
        raise ValueError(f"list: there are algorithms, tasks and datasets, got {what!r}")
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if what == "algorithms":
        rows = [_narrow(row) for row in rows]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for number, column in enumerate(rows[0]):
        table.add_column(column, no_wrap=not number, overflow="fold")  # names are never cut
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)


def _narrow(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the list of algorithms that fits into 80 columns: the class below the name where it is another."""
    name, kind = row["algorithm"], row["class"]
    heads = {"exchanges": "ex-\nchanges", "2nd derivatives": "2nd\norder", "unequal steps": "unequal\nsteps"}
    heads["constraints"] = "sets"
    rest = {heads.get(head, head): value for head, value in row.items() if head not in ("algorithm", "class")}
    return {"algorithm\n  class": name if name == kind else f"{name}\n  {kind}"} | rest


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the runs, the figure and the report go.")] = Path("demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 300,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each algorithm, in one program.")] = 3,
) -> None:
    """Compare six bilevel algorithms on scikit-learn's digits: a table, a figure and a report, in about a minute.

    Example: rookery demo --rounds 100 --seeds 5
    """
    with _goes_on_with(f"Start it again with: {_command()}"):
        run_demo(out, rounds, seeds)


# --- what the commands share -----------------------------------------------------------------------------------------


def _settings(task: str, given: dict[str, Any], pairs: list[str]) -> Settings:
    """Settings from a task's name or a TOML file, options and NAME=VALUE pairs; what is given later wins."""
    if task.endswith(".toml") or Path(task).is_file():
        base = read_settings(Path(task)).tables()
        changed = given.get("algorithm") not in (None, base["run"]["algorithm"])
        if changed:
            base["algorithm"] = {}
    else:
        base = {"run": {"task": task}, "task": {}, "algorithm": {}}
    run = {**base["run"], **{name: value for name, value in given.items() if value is not None}}
    recipe = recipe_of(run["task"])
    plain = resolve(run, base["task"], base["algorithm"])
    options, rates = assignments(pairs, recipe, plain.algorithm)
    return resolve(run, {**base["task"], **options}, {**base["algorithm"], **rates})


def _new_folder(settings: Settings) -> Path:
    return _new_place(f"{settings.task}-{settings.algorithm}")


def _new_place(name: str) -> Path:
    """runs/name-1, or the first number that is free."""
    number = 1
    while (Path("runs") / f"{name}-{number}").exists():
        number += 1
    return Path("runs") / f"{name}-{number}"


def _command() -> str:
    return shlex.join(["rookery", *sys.argv[1:]])


@contextmanager
def _goes_on_with(line: str) -> Iterator[None]:
    """Says so when the work inside is stopped, in place of what a part of it says."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.__notes__ = [line]
        raise


def _finish(folder: Path, work: Callable[[], Solution], as_json: bool) -> None:
    solution = work()
    done = read_run(folder)
    if as_json:
        typer.echo(json.dumps(_final(done), indent=2))
    else:
        _show([done])
        Console().print(f"Run: {folder}")
    for each in solution.diverged:
        typer.echo(f"Diverged: {solution.why(each.lane)}", err=True)
    if len(solution.diverged) == solution.lanes:
        raise typer.Exit(1)


def _final(run: StoredRun) -> dict[str, Any]:
    """The last row, for machines."""
    last = {name: np.asarray(value).tolist() for name, value in run.history.last.items()}
    return {"folder": str(run.path), "metric": run.metric, "final": last}


def _show(runs: list[StoredRun]) -> None:
    """A table for each task and data set."""
    groups: dict[tuple[str, str], list[StoredRun]] = {}
    for each in runs:
        groups.setdefault((each.config["run"]["task"], each.config["run"]["dataset"]), []).append(each)
    for (task, dataset), members in groups.items():
        first = members[0]
        Console().print(final_table(_labelled(members), first.metric, f"{task} on {dataset}", first.higher_is_better))


def _labelled(runs: list[StoredRun]) -> dict[str, History]:
    names = [each.name for each in runs]
    return {
        each.name if names.count(each.name) == 1 else f"{each.name} ({each.path.name})": each.history for each in runs
    }


def _write_report(runs: list[StoredRun], page: Path, title: str | None = None) -> tuple[Path, Path]:
    page.parent.mkdir(parents=True, exist_ok=True)
    write_page(runs, page, title)
    alike = [each for each in runs if each.config["run"]["task"] == runs[0].config["run"]["task"]]
    heading = title or f"{runs[0].config['run']['task']} on {runs[0].config['run']['dataset']}"
    for suffix in (".pdf", ".png"):
        plot_curves(_labelled(alike), runs[0].metric, heading, page.with_suffix(suffix))
    return page, page.with_suffix(".png")


def _tensorboard(folder: Path) -> Callable[..., None]:
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


def _values(text: str) -> tuple[str, list[float]]:
    name, equals, values = text.partition("=")
    parsed = [parse_value(each) for each in values.split(",")]
    if not equals or not all(isinstance(each, int | float) and not isinstance(each, bool) for each in parsed):
        raise ValueError(f"--grid must be NAME=V1,V2,… with numbers, got {text!r}")
    return name, [float(each) for each in parsed]


def _range(text: str) -> tuple[str, tuple[float, float]]:
    name, equals, values = text.partition("=")
    low, dots, high = values.partition("..")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = 0.0, 0.0
    if not equals or not dots or not 0 < ends[0] < ends[1]:
        raise ValueError(f"--random must be NAME=LOW..HIGH with 0 < LOW < HIGH, got {text!r}")
    return name, ends


def main() -> None:
    """The entry point."""
    with heard(at_once=True):
        try:
            app()
        except KeyboardInterrupt as stopped:
            end(_told(stopped))
        except SystemExit as done:
            if asked():
                end(done.code if isinstance(done.code, int) else 1)
            raise
