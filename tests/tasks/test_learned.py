"""What is shown and stored of what was learned."""

import base64
import csv
import io
import json

import numpy as np
import pytest

from rookery.report.exhibits import read_exhibits
from rookery.tasks.learned import LONGEST, WIDEST, Rows, bars, lines, numbers, picture, separated, table

ROWS = Rows(
    ["sample", "client", "weight", "suspicious"],
    [
        (np.int64(3), 'St. "Anna", ward\n2', np.float32(0.25), np.True_),
        (np.str_("a/b.png"), "Zoë", float("nan"), False),
    ],
)


def test_tables_are_csv_that_anybody_reads():
    (head, *body) = csv.reader(io.StringIO(ROWS.as_csv(), newline=""))
    assert head == list(ROWS.columns)
    assert body == [["3", 'St. "Anna", ward\n2', "0.25", "yes"], ["a/b.png", "Zoë", "nan", "no"]]
    assert ROWS["suspicious"].tolist() == [True, False]


def test_exhibits_are_json_and_the_report_takes_them():
    long = Rows(["class", "weight"], [(np.str_(f"class {number}"), np.float64(number)) for number in range(400)])
    made = [
        table("Learned", "All of it.", ROWS),
        table("Long", "", long),
        bars("Weights", "", ["a", "b"], np.array([0.5, np.inf])),
        lines("ROC", "", "across", "up", np.linspace(0, 1, 5), np.linspace(0, 1, 5), "AUROC 50 %", True),
    ]
    shown, problems = read_exhibits(json.loads(json.dumps(made, allow_nan=False)), "here")
    assert problems == []
    assert shown[0]["rows"][0] == ["3", 'St. "Anna", ward 2', "0.25", "yes"]
    assert len(shown[1]["rows"]) == LONGEST
    assert shown[2]["values"] == [0.5, None]
    assert numbers([1 / 3, np.nan]) == [0.333333, None]


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (900, 1200, 3)])
def test_pictures_have_as_many_bytes_as_pixels_and_are_never_large(shape):
    stored = np.random.default_rng(0).integers(40, 60, shape).astype(np.uint8)
    made = picture(stored)
    pixels = np.frombuffer(base64.b64decode(made["pixels"]), np.uint8).reshape(made["shape"])
    assert max(made["shape"][:2]) <= WIDEST
    assert (pixels.min(), pixels.max()) == (0, 255)
    if max(shape) < WIDEST:
        np.testing.assert_allclose(pixels.reshape(shape), (stored - 40.0) * 255 / 19, atol=0.5)
    else:
        assert made["shape"] == [113, 150, 3]
    example = {"kind": "samples", "title": "a", "columns": [], "items": [{"cells": [], "image": made}]}
    assert read_exhibits([example], "here")[1] == []


def test_a_row_of_a_table_is_no_picture_and_a_flat_one_is_black():
    assert picture(np.zeros(4)) is None
    assert set(base64.b64decode(picture(np.full((3, 3), 9))["pixels"])) == {0}


def test_two_groups_are_cut_where_the_variance_within_is_least():
    random = np.random.default_rng(1)
    for _ in range(20):
        weights = np.concatenate([random.normal(0.2, 0.1, random.integers(1, 20)), random.normal(0.8, 0.2, 15)])
        cuts = np.sort(weights)[:-1]
        within = [sum(part.var() * len(part) for part in (weights[weights <= c], weights[weights > c])) for c in cuts]
        np.testing.assert_array_equal(separated(weights), weights <= cuts[int(np.argmin(within))])


def test_equal_weights_are_one_group():
    assert not separated(np.full(9, 0.5)).any()
    assert not separated(np.array([0.5])).any()
    assert separated(np.array([0.0, 1.0, 1.0])).tolist() == [True, False, False]
