"""The model of a run on new data."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rookery.datasets import Encoding
from rookery.experiment.outcome import MODEL
from rookery.models.stored import load_model
from rookery.tasks.inputs import Scaling
from rookery.tasks.learned import Rows
from rookery.tasks.network import predict, probabilities


def predict_file(
    run: Path, data: str, *, fill: bool = False, ignore: Sequence[str] = ()
) -> tuple[Rows, dict[str, int]]:
    """A row for each of the new ones, with the probability of every class; and how often each class is predicted.

    Of a score (AUROC) the probability is that of the positive class, and from one half on a row is called positive.
    """
    path = run / MODEL if run.is_dir() else run
    if not path.is_file():
        raise ValueError(f"{run} has no {MODEL}: {_why_none(run)}")
    network, about = load_model(path)
    encoding = _encoding(about, path)
    inputs, where = encoding.apply(data, fill, ignore)
    scaling = Scaling(_moment(about["mean"]), _moment(about["deviation"]))
    shares = probabilities(predict(scaling, network, inputs))
    names, chosen = _named(about, shares)
    heads = [f"p_{name}" for name in names]
    cells = zip(where.tolist(), chosen, *(shares.T if len(names) == shares.shape[1] else []), strict=True)
    return Rows(["row", "prediction", *heads], [list(row) for row in cells]), dict(Counter(chosen))


def _named(about: Mapping[str, Any], shares: np.ndarray) -> tuple[list[str], list[str]]:
    """The classes that have a probability, and the class of each row."""
    if shares.shape[1] > 1:
        names = [str(name) for name in about["classes"]]
        return names, [names[place] for place in shares.argmax(1)]
    positive = str(about.get("positive", "positive"))
    others = [str(name) for name in about["classes"] if str(name) != positive]
    negative = others[0] if len(others) == 1 else f"not {positive}"
    return [positive], [positive if share >= 0.5 else negative for share in shares[:, 0]]


def _why_none(run: Path) -> str:
    if not run.exists():
        return "there is no such folder"
    return "its task stores no model" if (run / "learned.json").exists() else "it is no run that is done"


def _encoding(about: Mapping[str, Any], path: Path) -> Encoding:
    """How inputs are made of new data; of the package's own data sets, images as they are."""
    try:
        if about["encoding"] is not None:
            return Encoding.of(about["encoding"])
        return Encoding(shape=tuple(about["shape"]), mean=_moment(about["mean"]), deviation=_moment(about["deviation"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} does not say what it was trained on: {error!r} is missing") from None


def _moment(value: Any) -> float | tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, list) else float(value)
