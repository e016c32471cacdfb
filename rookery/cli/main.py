"""The ``rookery`` command: its subcommands, and what they have in common when something goes wrong."""

import sys
import traceback
import warnings
from importlib.metadata import version
from typing import Annotated, Any

import click
import typer
import typer.core

from rookery.cli import (
    compare,
    data,
    demo,
    deploy,
    init,
    launch,
    listing,
    node,
    predict,
    report,
    reproduce,
    resume,
    run,
    sweep,
    tune,
)
from rookery.processes import Lost, broken, say
from rookery.stopping import Interrupted, asked, end, heard


class _OneLineErrors(typer.core.TyperGroup):
    """Bad input gives one line on stderr and exit status 2; --debug shows where it was raised. A warning is one line."""

    def main(self, *args: Any, standalone_mode: bool = True, **more: Any) -> Any:
        try:
            code = super().main(*args, **{**more, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            if message := error.format_message():  # Typer has shown the help already
                typer.echo(message)
            code = 2
        except click.UsageError as error:
            say("Error: " + " ".join(error.format_message().split()))
            code = 2
        except click.Abort as error:
            code = _announce(error.__cause__)
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
            parts = [str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))]
            say("Error: " + " ".join(" ".join(parts).split()))
            raise typer.Exit(1 if isinstance(error, Lost) else 2) from None
        except KeyboardInterrupt as stopped:
            raise typer.Exit(_announce(stopped)) from None


def _announce(stopped: BaseException | None) -> int:
    """Says in one line what stopped the command and how to continue; returns the exit status."""
    status = stopped.status if isinstance(stopped, Interrupted) else 130
    word = "Interrupted." if status == 130 else "Terminated."
    say(" ".join([word, *getattr(stopped, "__notes__", ())]))
    return status


def _one_line(message: Warning | str, *_: Any) -> None:
    say("Warning: " + " ".join(str(message).split()))


app = typer.Typer(
    cls=_OneLineErrors,
    help="Rookery: federated nested optimization (bilevel, minimax, client weighting).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rookery {version('rookery')}")
        raise typer.Exit


@app.callback()
def _main(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("run")(run.command)
app.command("resume")(resume.command)
app.command("launch", context_settings=launch.SETTINGS)(launch.command)
app.command("compare")(compare.command)
app.command("tune")(tune.command)
app.command("sweep")(sweep.command)
app.command("predict")(predict.command)
app.command("report")(report.command)
app.command("reproduce")(reproduce.command)
app.command("list")(listing.command)
app.command("init")(init.command)
app.command("demo")(demo.command)
app.command("node")(node.command)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")


def main() -> None:
    """The entry point."""
    with heard(at_once=True):
        try:
            app()
        except KeyboardInterrupt as stopped:
            end(_announce(stopped))
        except SystemExit as done:
            if asked() or broken():
                end(done.code if isinstance(done.code, int) else 1)
            raise
        except Exception:
            if broken():  # the interpreter's own end would wait for the processes that are lost
                traceback.print_exc()
                end(1)
            raise
