"""``rookery deploy``: a federation on real machines."""

from pathlib import Path
from typing import Annotated

import typer

from rookery.aggregation.secure.options import SecureSum
from rookery.cli.certificates import write_certificates, write_node_key
from rookery.cli.flower_folder import write_flower_app
from rookery.cli.options import Aggregate, Privacy, Problem, RootCertificates, Secure, SuperLink
from rookery.engines.flower.engine import Flower
from rookery.engines.flower.launch.processes import require_flower
from rookery.experiment.deployed import run_deployed
from rookery.experiment.settings import parse_value
from rookery.experiment.sites import open_site, site_title

app = typer.Typer(help="Federations on real machines.", no_args_is_help=True)


@app.command("run")
def run_command(
    superlink: SuperLink,
    problem: Problem,
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished run in it is continued.")],
    algorithm: Annotated[str, typer.Option(help="Algorithm; see rookery list.")] = "MeFBO",
    rates: Annotated[str, typer.Option(help='Its rates: "eta_x=0.1 eta_y=0.2".')] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 50,
    every: Annotated[int, typer.Option(min=1, help="Rounds between evaluations.")] = 10,
    participants: Annotated[
        str, typer.Option(help="Clients in a round: a number, a probability such as 0.5, or all.")
    ] = "all",
    local_steps: Annotated[str, typer.Option(help="Local steps: a number, or a range such as 5-15.")] = "1",
    batch_size: Annotated[str, typer.Option(help="Size of minibatches: a number, all, or LOWER,UPPER.")] = "all",
    seed: Annotated[int, typer.Option(help="The seed.")] = 0,
    quorum: Annotated[
        str, typer.Option(help="Least share (0.5; 1.0 is all) or number (1, 2, …) of participants that must answer.")
    ] = "0.5",
    attempts: Annotated[int, typer.Option(min=1, help="How often a round may be tried until the quorum answers.")] = 5,
    over_selection: Annotated[
        float, typer.Option(min=1.0, help="1.3 asks 130 % of the participants and counts the first to answer.")
    ] = 1.0,
    deadline: Annotated[float, typer.Option(help="Seconds to wait for an exchange.")] = 120.0,
    patience: Annotated[float, typer.Option(help="Seconds to wait for all clients at the start.")] = 600.0,
    root_certificates: RootCertificates = None,
    node_keys: Annotated[Path | None, typer.Option(help="A TOML file with the clients of each node's key.")] = None,
    aggregate: Aggregate = None,
    privacy: Privacy = None,
    secure: Secure = None,
) -> None:
    """Be the server of a federation whose clients live on nodes (rookery node), through a running SuperLink.

    Example: rookery deploy run --superlink 127.0.0.1:8000 --problem my_problem.py --algorithm FedBiO --out runs/first
    """
    config = {
        "algorithm": algorithm, "rates": rates, "rounds": rounds, "every": every, "participants": participants,
        "local-steps": local_steps, "batch-size": batch_size, "seed": seed,
        "aggregate": aggregate or "", "privacy": privacy or "",
    }  # fmt: skip
    least = parse_value(quorum)
    if not isinstance(least, int | float):
        raise ValueError(f"--quorum must be a share such as 0.5 or a number such as 2, got {quorum!r}")
    engine = Flower(
        superlink=superlink, certificates=root_certificates, keys=node_keys, quorum=least, attempts=attempts,
        over_selection=over_selection, deadline=deadline, patience=patience,
        secure=None if secure is None else SecureSum(secure), collect=secure is None and privacy is None,
    )  # fmt: skip
    solution = run_deployed(open_site(problem), config, engine, out, site_title(problem))
    typer.echo(f"{solution.rounds} rounds are done: {out}")


@app.command("init")
def init_command(
    folder: Annotated[Path, typer.Argument(help="A new folder for the app.")],
    problem: Annotated[str, typer.Option(help="The problem: a Python file, or a run's TOML file.")],
) -> None:
    """Write an ordinary Flower App for your problem (a Python file) or for a run's settings (a TOML file).

    Example: rookery deploy init hospital-app --problem my_problem.py
    """
    source = Path(problem)
    if source.suffix not in (".py", ".toml") or not source.is_file():
        raise ValueError(f"--problem must be an existing Python file or TOML file of settings, got {problem!r}")
    _check_empty(folder)
    write_flower_app(folder, source)
    typer.echo(f"{folder} is a Flower App; {folder / 'README.md'} says how to run it.")


@app.command("certs")
def certs_command(
    folder: Annotated[Path, typer.Argument(help="A new folder for certificates and keys.")],
    host: Annotated[list[str], typer.Option(help="A name or address of the SuperLink; may be given several times.")],
    nodes: Annotated[int, typer.Option(min=0, help="Number of nodes that need keys.")] = 0,
    days: Annotated[int, typer.Option(min=1, help="Days for which the certificates are valid.")] = 365,
) -> None:
    """Make a certificate authority, the SuperLink's certificate, and a pair of keys for each node.

    Example: rookery deploy certs certs --host superlink.example.org --nodes 3
    """
    require_flower()  # whose cryptography package is used
    _check_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_certificates(folder, host, days)
    for number in range(nodes):
        write_node_key(folder, f"node-{number}")
    typer.echo(
        f"{folder}: ca.pem goes to every node; server.pem, server.key and ca.pem to the SuperLink; keep ca.key safe."
    )


def _check_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} must be a new or empty folder")
