"""``rookery predict``: what the model of a run says of new data."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rookery.cli.options import Fill, Ignore, Json
from rookery.cli.output import print_json
from rookery.experiment.prediction import predict_file


def command(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or its model.safetensors.")],
    data: Annotated[str, typer.Option(help="New data of the same kind: a table, arrays (.npz) or a folder of images.")],
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("predictions.csv"),
    ignore: Ignore = None,
    fill: Fill = False,
    as_json: Json = False,
) -> None:
    """Predict the classes of new data with the model that a run has learned.

    The columns must be those that it was trained on, in any order; a column of labels may be there or not. A model from a
    Python file is run from the copy in the folder: predict with runs of people whose programs you would run.

    Example: rookery predict runs/data-cleaning-MeFBO-1 --data new_patients.csv --out predictions.csv
    """
    rows, counts = predict_file(run, data, fill=fill, ignore=tuple(ignore or ()))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(rows.as_csv(), newline="")
    if as_json:
        print_json({"file": str(out), "rows": len(rows.rows), "predictions": counts})
        return
    told = ", ".join(f"{name} {count}" for name, count in counts.items())
    Console().print(
        f"{len(rows.rows)} rows: {told}.\nPredictions: {out}", soft_wrap=True, markup=False, highlight=False
    )
