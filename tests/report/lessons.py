"""Runs that have learned something, with simple rivals beside them: every kind of exhibit, as tasks write them."""

import base64
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from rookery.experiment.folder import StoredRun
from tests.report.test_report import sample_run

CLASSES = [str(digit) for digit in range(10)]


def image(pixels: np.ndarray) -> dict:
    """As ``learned.json`` has it."""
    pixels = np.atleast_3d(np.asarray(pixels, np.uint8))
    return {"shape": list(pixels.shape), "pixels": base64.b64encode(pixels.tobytes()).decode()}


def digits(count: int) -> list[tuple[dict, int]]:
    """Images with what they show."""
    data = load_digits()
    return [(image(255 - 255 * data.images[k] / 16), int(data.target[k])) for k in range(count)]


def exhibits(seed: int = 0) -> list[dict]:
    """One of each kind."""
    random = np.random.default_rng(seed)
    shown = digits(24)
    rank = np.linspace(0, 1, 60)
    suspicious = [
        {"cells": [f"hospital {k % 5}", str((digit + 3) % 10), str(digit), round(0.002 * k, 4)], "image": picture}
        for k, (picture, digit) in enumerate(shown)
    ]
    patients = [
        {
            "cells": [k, "benign", "malignant", 0.01 * k],
            "values": [["radius", 14.2 + k], ["smoker", "yes"], ["age", 51 + k]],
        }
        for k in range(6)
    ]
    groups = [
        {
            "caption": f"Task {number + 1}: five characters, one example of each",
            "support": [{"image": picture, "label": CLASSES[digit]} for picture, digit in shown[5 * number :][:5]],
            "query": [
                {"image": picture, "label": CLASSES[digit], "predicted": CLASSES[(digit + (k == 2)) % 10]}
                for k, (picture, digit) in enumerate(shown[10:18])
            ],
        }
        for number in range(2)
    ]  # fmt: skip
    return [
        {"kind": "samples", "title": "The most suspicious labels", "text": "Samples with the smallest weights.",
         "columns": ["client", "given", "looks like", "weight"], "items": suspicious},
        {"kind": "samples", "title": "The most suspicious patients", "text": "Rows of the table.",
         "columns": ["row", "given", "predicted", "weight"], "items": patients},
        {"kind": "bars", "title": "Accuracy by class", "text": "The share of each class that is recognised.",
         "labels": list(CLASSES), "values": (0.85 + 0.14 * random.random(10)).tolist(), "percent": True},
        {"kind": "bars", "title": "Class shifts", "text": "What is added to the logit of each class.",
         "labels": list(CLASSES), "values": random.standard_normal(10).tolist(), "percent": False},
        {"kind": "lines", "title": "ROC", "text": "Alarms among the healthy and the sick.", "across": "false alarms",
         "up": "sick found", "x": rank.tolist(), "y": (rank**0.2).tolist(), "name": "AUROC 83.3 %", "diagonal": True},
        {"kind": "history", "title": "Weights of the clients", "text": "Whom the server came to trust.",
         "columns": {f"weight_{k}": f"hospital {k}" for k in range(12)}, "up": "weight"},
        {"kind": "table", "title": "Learned hyperparameters", "text": "Chosen on validation data.",
         "columns": ["name", "start", "learned"], "rows": [["weight decay", 0.01, 0.00213], ["temperature", 1, 1.73]]},
        {"kind": "groups", "title": "Few-shot tasks", "text": "New characters from one example each.", "groups": groups},
    ]  # fmt: skip


def rivals() -> dict:
    """Two simple ones and a ceiling."""
    bars = exhibits(9)[2]
    return {
        "metric": "accuracy", "higher_is_better": True, "seconds": 4.2,
        "rivals": [
            {"name": "plain federated averaging", "what": "One model for all, trained on the labels as they are.",
             "ceiling": False, "metrics": {"accuracy": [0.812, 0.822, 0.805], "loss": [0.7, 0.71, 0.69]},
             "exhibits": [bars]},
            {"name": "validation data alone", "what": "A model of the few labels that somebody has checked.",
             "ceiling": False, "metrics": {"accuracy": [0.88, 0.885, 0.879]}},
            {"name": "oracle", "what": "Averaging without the wrong labels.", "ceiling": True,
             "metrics": {"accuracy": [0.981, 0.979, 0.98]}},
        ],
    }  # fmt: skip


def lesson(folder: Path, name: str, learned: list[dict] | None = None, **changes) -> StoredRun:
    """A run with its ``learned.json``; the clients' weights are columns of its history."""
    run = sample_run(name, task="data-cleaning", **changes)
    for row in run.history:
        for k in range(12):
            row[f"weight_{k}"] = np.full(3, 1 / 12 + (k - 5.5) / 70 * (1 - np.exp(-row["round"] / 60)))
    run.config["task"].update(noise=0.6)
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "learned.json").write_text(json.dumps({"seed": 0, "exhibits": exhibits() if learned is None else learned}))
    return replace(run, path=path)


def lessons(folder: Path) -> list[StoredRun]:
    """Three runs with rivals: the best is not the first."""
    runs = [lesson(folder, name, exhibits(number)) for number, name in enumerate(("ASFBO", "FedBiOAcc", "FedNest"))]
    (folder / "rivals.json").write_text(json.dumps(rivals()))
    return runs
