"""A user's own tables, arrays and images: what is read of them, and what is refused in one line."""

import hashlib
import json
import sys
import types
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from rookery.datasets import Encoding, OwnFile, digits, from_arrays

RNG = np.random.default_rng(0)
ROWS = 60
AGE = RNG.normal(50, 10, ROWS).round(1)
SEX = np.array(["f", "m"])[RNG.integers(0, 2, ROWS)]
ILL = np.array(["no", "yes"])[np.arange(ROWS) % 2]
SITE = np.array(["Bonn", "Ulm", "Kiel"])[np.arange(ROWS) % 3]
TABLE = {"age": AGE, "sex": SEX, "ill": ILL, "site": SITE}


def text(table, delimiter=","):
    rows = [table, *zip(*table.values(), strict=True)]
    return "".join(delimiter.join(map(str, row)) + "\n" for row in rows)


def csv_file(folder, table=TABLE, name="patients.csv", **changed):
    path = folder / name
    path.write_text(text(table | changed), encoding="utf-8")
    return str(path)


def with_cell(name, row, cell):
    column = TABLE[name].astype(object)
    column[row] = cell
    return {name: column}


def image_folder(folder, classes=("cat", "dog"), count=5, clients=("",), shape=(4, 6), seed=0):
    rng = np.random.default_rng(seed)
    for client in clients:
        for name in classes:
            (folder / client / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                pixels = rng.integers(0, 256, shape, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / client / name / f"{i}.png")
    return str(folder)


# --- what is read -----------------------------------------------------------------------------------------------------


def test_a_table_is_scaled_and_encoded_by_its_training_rows(tmp_path):
    data = OwnFile(csv_file(tmp_path), "ill", "site").read()
    assert data.class_names == ("no", "yes")
    assert data.client_names == ("Bonn", "Kiel", "Ulm")
    assert (len(data.train_rows), len(data.test_rows)) == (48, 12)
    assert sorted([*data.train_rows, *data.test_rows]) == list(range(ROWS))
    assert np.bincount(data.test_labels).tolist() == [6, 6], "a fifth of each class"
    assert data.encoding.features == ("age", "sex=f", "sex=m")
    mean, deviation = AGE[data.train_rows].mean(), AGE[data.train_rows].std()
    for inputs, labels, rows in (
        (data.train_inputs, data.train_labels, data.train_rows),
        (data.test_inputs, data.test_labels, data.test_rows),
    ):
        expected = np.stack([(AGE[rows] - mean) / deviation, SEX[rows] == "f", SEX[rows] == "m"], 1)
        assert inputs.dtype == np.float32
        np.testing.assert_allclose(inputs, expected, atol=1e-6)
        assert (np.array(data.class_names)[labels] == ILL[rows]).all()
    assert (np.array(data.client_names)[data.train_clients] == SITE[data.train_rows]).all()
    assert (data.mean, data.deviation, data.classes, data.shape) == (0.0, 1.0, 2, (3,))
    row = dict(data.encoding.values(data.train_inputs[0]))
    assert row == {"age": pytest.approx(AGE[data.train_rows[0]], rel=1e-5), "sex": SEX[data.train_rows[0]]}


def same(a, b):
    for name in ("train_inputs", "train_labels", "test_inputs", "test_labels", "train_rows", "train_clients"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert (a.class_names, a.client_names) == (b.class_names, b.client_names)
    assert a.encoding.columns == b.encoding.columns


def test_delimiters_marks_and_quotes_do_not_matter(tmp_path):
    expected = OwnFile(csv_file(tmp_path), "ill", "site").read()
    quoted = ["sex" if name == "sex" else f'"{name}"' for name in TABLE]
    body = text(TABLE).split("\n", 1)[1]
    for name, content in {
        "mark.csv": "\ufeff" + text(TABLE),
        "semicolons.csv": text(TABLE, ";"),
        "tabs.txt": text(TABLE, "\t"),
        "spaces.csv": "".join(f'"{line}"\n' for line in text(TABLE, '", "').splitlines()),
        "quoted.CSV": ",".join(quoted) + "\r\n" + body.replace("\n", "\r\n") + "\r\n",
    }.items():
        (tmp_path / name).write_text(content, encoding="utf-8", newline="")
        same(OwnFile(str(tmp_path / name), "ill", "site").read(), expected)
    (tmp_path / "wide.tsv").write_text(text(TABLE, "\t"), encoding="utf-16")
    same(OwnFile(str(tmp_path / "wide.tsv"), "ill", "site").read(), expected)


def test_parquet_gives_what_csv_gives(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    flags = np.arange(ROWS) % 4 == 0
    columns = TABLE | {"sex": arrow.array(SEX).dictionary_encode(), "count": np.arange(ROWS) % 7, "flag": flags}
    parquet.write_table(arrow.table(columns), tmp_path / "p.parquet")
    numbers = {"count": np.arange(ROWS) % 7, "flag": flags.astype(int)}
    same(
        OwnFile(str(tmp_path / "p.parquet"), "ill", "site").read(),
        OwnFile(csv_file(tmp_path, TABLE | numbers), "ill", "site").read(),
    )
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "p.parquet").read_bytes()[:-9])
    refused(lambda: OwnFile(str(tmp_path / "cut.parquet"), "ill").read(), "cut.parquet: not a whole Parquet file")
    dates = columns | {"day": np.arange(ROWS).astype("datetime64[D]")}
    parquet.write_table(arrow.table(dates), tmp_path / "dates.parquet")
    refused(lambda: OwnFile(str(tmp_path / "dates.parquet"), "ill").read(), "column 'day': type date32")


def test_arrays_of_all_kinds_are_one_data_set(tmp_path):
    features, labels = RNG.normal(size=(ROWS, 3)), np.arange(ROWS) % 2
    expected = from_arrays(features, labels, clients=SITE)
    np.savez(tmp_path / "a.npz", features=features, labels=labels, clients=SITE, notes=np.zeros(7))
    np.savez(tmp_path / "b.npz", features=features, y=labels.astype(float), site=SITE)
    tensor = types.SimpleNamespace(detach=lambda: types.SimpleNamespace(cpu=lambda: features))  # as PyTorch's are
    same(OwnFile(str(tmp_path / "a.npz")).read(), expected)
    same(OwnFile(str(tmp_path / "b.npz"), "y", "site").read(), expected)
    same(from_arrays(jnp.asarray(features), jnp.asarray(labels), clients=SITE.tolist()), expected)
    same(from_arrays(tensor, labels, clients=SITE), expected)
    assert not np.array_equal(from_arrays(features, labels, seed=1).train_rows, expected.train_rows)


class Frame(dict):
    """What is used of a pandas table."""

    columns = property(lambda self: list(self))

    def __len__(self):
        return len(next(iter(self.values())))


def test_a_table_with_named_columns_is_encoded_as_a_file(tmp_path):
    frame = Frame(age=AGE, sex=SEX.astype(object))
    same(from_arrays(frame, ILL, clients=SITE), OwnFile(csv_file(tmp_path), "ill", "site").read())


def test_missing_cells_are_filled_by_the_training_rows(tmp_path):
    age, sex = TABLE["age"].astype(object), TABLE["sex"].astype(object)
    age[:6], sex[6:12] = ["", "NA", "NaN", "null", "None", "?"], ["", "NA", "nan", "null", "None", "?"]
    data = OwnFile(csv_file(tmp_path, age=age, sex=sex), "ill", ignore=("site",), fill=True).read()
    assert data.encoding.features == ("age", "sex=f", "sex=m", "sex=missing")
    known = [row for row in data.train_rows if row >= 6]
    assert data.encoding.columns[0].median == np.median(AGE[known])
    gaps = np.flatnonzero(data.train_rows < 6)
    assert len(np.unique(data.train_inputs[gaps, 0])) == 1
    assert ((data.train_inputs[:, 3] == 1) == ((data.train_rows >= 6) & (data.train_rows < 12))).all()


def test_the_test_part_is_of_checked_rows(tmp_path):
    checked = np.array(["yes", "No", "1", "FALSE"])[np.arange(ROWS) // 2 % 4]
    data = OwnFile(csv_file(tmp_path, seen=checked), "ill", "site", "seen").read()
    truth = np.isin(checked, ["yes", "1"])
    assert truth[data.test_rows].all()
    assert len(data.test_rows) == 6
    assert (data.train_checked == truth[data.train_rows]).all()
    held = data.held_out()
    assert truth[held.test_rows].all()
    for name, whole in (("train_checked", truth), ("train_rows", np.arange(ROWS))):
        assert (getattr(held, name) == whole[held.train_rows]).all()
    assert (np.array(held.client_names)[held.train_clients] == SITE[held.train_rows]).all()
    assert sorted([*held.train_rows, *held.test_rows]) == sorted(data.train_rows)
    assert len(held.train_rows) == len(held.train_inputs) == len(held.train_checked) == len(held.train_clients)


def test_no_client_and_no_class_is_lost_to_the_test_part():
    features = RNG.normal(size=(ROWS, 2))
    clients = np.array(["big"] * 54 + [f"small{i}" for i in range(6)])
    rare = np.array([2, 2, *np.arange(ROWS - 3) % 2, 2])  # two rows of the rare class are of the big client
    for seed in range(5):
        data = from_arrays(features, rare, clients=clients, seed=seed)
        held = data.held_out()
        assert set(data.train_clients) == set(held.train_clients) == set(range(7))
        assert set(data.train_labels) == set(data.test_labels) == {0, 1, 2}
        assert held.classes == 3
    alone = np.array([*np.arange(ROWS - 3) % 2, 2, 2, 2])
    refused(lambda: from_arrays(features, alone, clients=clients), "class '2' has no row to test with")


def test_published_data_are_held_out_as_before():
    data = digits()
    held, count = data.held_out(seed=3), len(data.train_labels)
    order = np.random.default_rng([3, count]).permutation(count)
    np.testing.assert_array_equal(held.test_labels, data.train_labels[order[: round(count / 6)]])
    assert held.test_rows is None


def test_labels_are_words_or_whole_numbers(tmp_path):
    ten = np.array(["10", "9", "9.0", "-1"])[np.arange(ROWS) % 4]
    assert OwnFile(csv_file(tmp_path, ill=ten), "ill").read().class_names == ("-1", "9", "10")
    clients = np.array(["007", "7"])[np.arange(ROWS) % 2]
    assert OwnFile(csv_file(tmp_path, site=clients), "ill", "site").read().client_names == ("007", "7")


@pytest.mark.parametrize(("shape", "colours"), [((4, 6), 0), ((4, 6, 3), 3)])
def test_a_folder_of_images_is_read_by_class_and_client(tmp_path, shape, colours):
    folder = image_folder(tmp_path / "pets", clients=("a", "b"), shape=shape)
    (tmp_path / "pets" / "README.txt").write_text("not an image")
    (tmp_path / "pets" / "a" / "cat" / ".hidden.png").write_text("not an image")
    data = OwnFile(folder).read()
    assert (data.class_names, data.client_names, data.shape) == (("cat", "dog"), ("a", "b"), shape)
    for image, label, client, path in zip(
        data.train_inputs, data.train_labels, data.train_clients, data.train_rows, strict=True
    ):
        np.testing.assert_array_equal(image, np.asarray(Image.open(tmp_path / "pets" / path)))
        assert path.split("/")[:2] == [data.client_names[client], data.class_names[label]]
    axes = (0, 1, 2) if colours else None
    np.testing.assert_allclose(data.mean, data.train_inputs.mean(axes))
    np.testing.assert_allclose(data.deviation, data.train_inputs.std(axes))
    assert data.train_inputs.dtype == np.uint8
    np.savez(tmp_path / "pets.npz", images=data.train_inputs, labels=data.train_labels)
    assert OwnFile(str(tmp_path / "pets.npz")).read().shape == shape


def test_a_grey_image_among_coloured_ones_is_coloured(tmp_path):
    folder = image_folder(tmp_path / "pets", classes=("cat",), shape=(4, 6, 3))
    image_folder(tmp_path / "pets", classes=("dog",))
    assert OwnFile(folder).read().shape == (4, 6, 3)


def test_a_test_file_is_encoded_by_the_training_rows(tmp_path):
    new = {name: values[:10] for name, values in TABLE.items() if name != "site"}
    test = csv_file(tmp_path, new, "test.csv")
    data = OwnFile(csv_file(tmp_path), "ill", "site", test=test).read()
    assert sorted(data.train_rows) == list(range(ROWS))
    assert data.test_rows.tolist() == list(range(10))
    np.testing.assert_allclose(data.test_inputs[:, 0], (AGE[:10] - AGE.mean()) / AGE.std(), atol=1e-6)
    assert (np.array(data.class_names)[data.test_labels] == ILL[:10]).all()
    folder, other = image_folder(tmp_path / "pets"), image_folder(tmp_path / "new", count=2, seed=1)
    assert OwnFile(folder, test=other).read().test_inputs.shape == (4, 4, 6)


def test_the_checksum_is_of_what_is_read(tmp_path):
    file = csv_file(tmp_path)
    digest = hashlib.sha256((tmp_path / "patients.csv").read_bytes()).hexdigest()
    assert OwnFile(file, "ill").sha256() == digest != OwnFile(file, "ill", test=file).sha256()
    folder = OwnFile(image_folder(tmp_path / "pets"))
    before = folder.sha256()
    (tmp_path / "pets" / "note.txt").write_text("no image")
    assert folder.sha256() == before
    (tmp_path / "pets" / "cat" / "4.png").rename(tmp_path / "pets" / "cat" / "9.png")
    assert folder.sha256() != before
    refused(lambda: OwnFile("gone.csv", "ill").sha256(), "data='gone.csv': there is no such file")


# --- new data ---------------------------------------------------------------------------------------------------------


def stored(data):
    return Encoding.of(json.loads(json.dumps(data.encoding.tables())))


def test_new_rows_become_the_inputs_that_training_had(tmp_path):
    with pytest.warns(UserWarning, match="constant: 'one'"):
        data = OwnFile(csv_file(tmp_path, one=np.ones(ROWS)), "ill", "site").read()
    encoding = stored(data)
    assert encoding == data.encoding
    fewer = {name: TABLE[name] for name in ("sex", "age")}  # no label, another order
    inputs, rows = encoding.apply(csv_file(tmp_path, fewer, "new.csv"))
    np.testing.assert_array_equal(inputs[data.train_rows], data.train_inputs)
    np.testing.assert_array_equal(rows, np.arange(ROWS))
    with_label, _ = encoding.apply(csv_file(tmp_path, TABLE, "new.csv"))
    np.testing.assert_array_equal(with_label, inputs)


def test_new_images_become_the_inputs_that_training_had(tmp_path):
    data = OwnFile(image_folder(tmp_path / "pets")).read()
    encoding = stored(data)
    assert encoding == data.encoding
    colours = from_arrays(RNG.integers(0, 256, (20, 4, 4, 3), np.uint8), np.arange(20) % 2)
    assert stored(colours) == colours.encoding
    images, rows = encoding.apply(str(tmp_path / "pets"))
    place = {row: at for at, row in enumerate(rows)}
    np.testing.assert_array_equal(images[[place[row] for row in data.train_rows]], data.train_inputs)
    single, rows = encoding.apply(str(tmp_path / "pets" / "cat" / "0.png"))
    np.testing.assert_array_equal(single[0], images[place["cat/0.png"]])
    assert rows.tolist() == ["0.png"]
    unsorted, _ = encoding.apply(str(tmp_path / "pets" / "cat"))
    assert len(unsorted) == 5


def test_a_word_never_seen_is_none_of_the_known(tmp_path):
    encoding = OwnFile(csv_file(tmp_path), "ill", "site").read().encoding
    file = csv_file(tmp_path, {"age": [50.0, ""], "sex": ["x", "f"]}, "new.csv")
    with pytest.warns(UserWarning, match=r"new.csv: never seen in training.*: 'x' of 'sex'$") as told:
        inputs, _ = encoding.apply(file, fill=True)
    assert len(told) == 1
    assert inputs[:, 1:].tolist() == [[0, 0], [1, 0]]
    code = encoding.columns[0]
    assert inputs[1, 0] == np.float32((code.median - code.mean) / code.deviation)


def test_constant_and_nameless_columns_are_left_out_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match=r"patients.csv: left out, as they are constant: 'one', 'word'$"):
        OwnFile(csv_file(tmp_path, one=np.ones(ROWS), word=["a"] * ROWS), "ill", "site").read()
    indexed = {"": np.arange(ROWS)} | TABLE
    with pytest.warns(UserWarning, match=r"column 0 \(from 0\) has no name"):
        data = OwnFile(csv_file(tmp_path, indexed), "ill", "site").read()
    assert data.encoding.features == ("age", "sex=f", "sex=m")


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(call, *parts):
    """In one line that has these parts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
    told = str(caught.value)
    assert "\n" not in told
    for part in parts:
        assert part in told, told


COLUMNS = {
    "no label": (TABLE, {"label": None}, "label: say which column", "'age', 'sex'"),
    "unknown label": (TABLE, {"label": "il"}, "label='il': in", "did you mean 'ill'?"),
    "unknown client column": (TABLE, {"client_column": "sites"}, "client_column='sites'", "did you mean 'site'?"),
    "unknown ignored": (TABLE, {"ignore": ("agee",)}, "ignore='agee'", "did you mean 'age'?"),
    "named twice": (TABLE, {"client_column": "ill"}, "'ill' is named twice"),
    "label ignored": (TABLE, {"ignore": ("ill",)}, "'ill' is named twice"),
    "constant label": (TABLE | {"ill": ["no"] * ROWS}, {}, "label 'ill' is constant: all 60 rows have 'no'"),
    "missing label": (TABLE | with_cell("ill", 7, "NA"), {"fill": True}, "'ill' is missing in 1 rows, first in row 7"),
    "quantity": (TABLE, {"label": "age"}, "label 'age' has", "different numbers", "a quantity"),
    "class of one row": (TABLE | with_cell("ill", 7, "maybe"), {}, "class 'maybe' of 'ill' has a single row"),
    "one client": (TABLE | {"site": ["Ulm"] * ROWS}, {"client_column": "site"}, "'site' has one value, 'Ulm'"),
    "missing client": (TABLE | with_cell("site", 3, ""), {"client_column": "site", "fill": True}, "first in row 3"),
    "cell": (TABLE | with_cell("age", 9, "old"), {}, "column 'age', row 9: 'old' is not a number"),
    "underscore": (TABLE | with_cell("age", 9, "5_0"), {}, "row 9: '5_0' is not a number"),
    "infinite": (TABLE | with_cell("age", 9, "inf"), {}, "column 'age', row 9: inf is not a finite number"),
    "too large": (TABLE | {"age": [1e300, -1e300] * 30}, {}, "column 'age': numbers up to 1e+300 cannot be scaled"),
    "missing": (TABLE | with_cell("age", 9, "") | with_cell("sex", 1, "?"), {}, "1 in 'age', 1 in 'sex'; fill=True"),
    "names": (TABLE | {"who": [f"p{i}" for i in range(ROWS)]}, {}, "column 'who' has 48 different words", "'p"),
    "not checked": (TABLE | {"ok": ["no"] * ROWS}, {"checked_column": "ok"}, "'ok': no row is checked"),
    "not true": (
        TABLE | {"ok": ["so"] * ROWS},
        {"checked_column": "ok"},
        "'ok', row 0: 'so' is neither true nor false",
    ),
    "class unchecked": (TABLE | {"ok": ILL}, {"checked_column": "ok"}, "no row of class 'no' is checked"),
    "only labels": ({"ill": ILL, "site": SITE}, {"client_column": "site"}, "has no column besides those"),
    "all constant": ({"ill": ILL, "a": np.ones(ROWS)}, {}, "no column is left to learn from: all are constant"),
    "no rows": ({"ill": [], "age": []}, {}, "has no rows"),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_a_wrong_column_is_refused_in_one_line(case, tmp_path):
    table, options, *parts = COLUMNS[case]
    file = csv_file(tmp_path, table)
    refused(lambda: OwnFile(file, **{"label": "ill"} | options).read(), *parts)


CONTENT = {
    "empty": (b"", "empty; its first line must name the columns"),
    "ragged": (b"a,ill\n1,no\n2\n", "row 1 has 1 cells, and 2 columns have a name"),
    "twice": (b"a,a,ill\n1,2,no\n", "more than one column has the name 'a'"),
    "not text": (b"a,ill\n1,\xff\xfe\x00\n", "not text in UTF-8"),
    "quote": (b'a,ill\n1,"no\n', "not a table of text: unexpected end of data"),
    "decimal comma": (b"a;ill\n1,5;no\n2,5;yes\n", "column 'a', row 0: '1,5' is not a number (write a decimal point"),
}


@pytest.mark.parametrize("case", CONTENT)
def test_a_file_that_is_no_table_is_refused_in_one_line(case, tmp_path):
    content, part = CONTENT[case]
    (tmp_path / "bad.csv").write_bytes(content)
    refused(lambda: OwnFile(str(tmp_path / "bad.csv"), "ill").read(), "bad.csv: ", part)


def test_files_that_are_not_there_or_not_known_are_named(tmp_path, monkeypatch):
    file = csv_file(tmp_path)
    refused(lambda: OwnFile(file, "ill", ignore="age"), "ignore must be several names, got the text 'age'")
    refused(lambda: OwnFile("gone.csv", "ill").read(), "data='gone.csv': there is no such file or folder")
    refused(lambda: OwnFile(file, "ill", test="gone.csv").read(), "test='gone.csv': there is no such file or folder")
    (tmp_path / "a.xlsx").write_text("")
    refused(lambda: OwnFile(str(tmp_path / "a.xlsx"), "ill").read(), "a.xlsx': must end with one of .csv, .tsv")
    (tmp_path / "a.npz").write_text("no")
    refused(lambda: OwnFile(str(tmp_path / "a.npz")).read(), "a.npz: not a whole .npz file of plain arrays")
    np.savez(tmp_path / "c.npz", x=np.zeros(2))
    refused(
        lambda: OwnFile(str(tmp_path / "c.npz")).read(), "must have an array 'features' or an array 'images', has x"
    )
    np.savez(tmp_path / "d.npz", features=np.zeros((9, 2)), labels=np.zeros(8))
    refused(lambda: OwnFile(str(tmp_path / "d.npz")).read(), "labels has shape (8,), must be (9,)")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_text("")
    refused(lambda: OwnFile(str(tmp_path / "a.parquet"), "ill").read(), "pip install 'rookery[parquet]'")


def test_images_that_do_not_fit_are_named(tmp_path):
    folder = image_folder(tmp_path / "pets")
    read = OwnFile(folder).read
    refused(OwnFile(folder, "class", "client").read, "client_column='client': in", "There are: class")
    bad = tmp_path / "pets" / "dog" / "7.png"
    Image.new("L", (5, 4)).save(bad)
    refused(read, "dog/7.png: 5×4 pixels, must be 6×4 as")
    bad.write_bytes((tmp_path / "pets" / "cat" / "0.png").read_bytes()[:60])
    refused(read, "dog/7.png: not an image that can be read")
    Image.fromarray(np.zeros((4, 6), np.uint16)).save(bad)
    refused(read, "dog/7.png: has more than 8 bits a pixel")
    bad.unlink()
    Image.new("L", (6, 4)).save(tmp_path / "pets" / "top.png")
    refused(read, "images must lie at one depth", "top.png in no folder of a class")
    (tmp_path / "empty").mkdir()
    refused(OwnFile(str(tmp_path / "empty")).read, "empty: no images in it (.png")
    image_folder(tmp_path / "cats", classes=("cat",))
    refused(OwnFile(str(tmp_path / "cats")).read, "label 'class' is constant: all 5 rows have 'cat'")


def test_new_data_of_another_form_are_refused_in_one_line(tmp_path):
    table = OwnFile(csv_file(tmp_path), "ill", "site").read().encoding
    pets = OwnFile(image_folder(tmp_path / "pets")).read().encoding
    other = csv_file(tmp_path, {"age": AGE, "weight": AGE}, "new.csv")
    refused(lambda: table.apply(other), "without 'sex' and with 'weight' in addition")
    extra = csv_file(tmp_path, TABLE | {"weight": AGE}, "extra.csv")
    refused(lambda: table.apply(extra), "other columns than the training data: with 'weight' in addition")
    assert table.apply(extra, ignore=("weight",))[0].shape == (ROWS, 3)
    refused(lambda: table.apply(csv_file(tmp_path, **with_cell("age", 0, "x"))), "column 'age', row 0: 'x' is not")
    refused(lambda: table.apply(csv_file(tmp_path, **with_cell("sex", 0, ""))), "missing values: 1 in 'sex'")
    refused(lambda: table.apply(str(tmp_path / "pets")), "images, must be a table")
    refused(lambda: pets.apply(csv_file(tmp_path)), "must be images, as the model was trained on")
    Image.new("L", (5, 5)).save(tmp_path / "five.png")
    refused(lambda: pets.apply(str(tmp_path / "five.png")), "five.png: 5×5 pixels, must be 6×4 as the model's")
    Image.new("RGB", (6, 4)).save(tmp_path / "red.png")
    refused(lambda: pets.apply(str(tmp_path / "red.png")), "red.png: in colours, must be grey")


def test_test_files_that_do_not_fit_are_refused(tmp_path):
    train = csv_file(tmp_path)

    def read(table):
        return lambda: OwnFile(train, "ill", "site", test=csv_file(tmp_path, table, "test.csv")).read()

    refused(read({"age": AGE, "sex": SEX}), "label='ill': in", "test.csv")
    refused(read({"age": AGE, "ill": ILL}), "test.csv: other columns than the training data: without 'sex'")
    refused(read(TABLE | with_cell("ill", 0, "maybe")), "classes that the training data do not have: 'maybe'")
    refused(read({name: values[::2] for name, values in TABLE.items()}), "test.csv: has no row of class 'yes'")
    refused(OwnFile(image_folder(tmp_path / "pets"), test=train).read, "label='class': in")


def test_arrays_that_do_not_fit_are_refused():
    ok = np.zeros((9, 2))
    refused(lambda: from_arrays(np.zeros(9), np.arange(9)), "features: must have two axes", "has shape (9,)")
    refused(lambda: from_arrays(np.array([["a"]]), [0]), "features: must be numbers, are <U1")
    refused(lambda: from_arrays(ok, np.zeros((9, 2))), "labels has shape (9, 2), must be (9,)")
    refused(lambda: from_arrays(ok, np.arange(9) % 2, test=ok), "test must be a pair of features and labels")
    refused(lambda: from_arrays(np.zeros((9, 3, 8, 8)), np.arange(9) % 2), "has the colours first")
    gaps = RNG.normal(size=(9, 2))
    gaps[4, 1] = np.nan
    refused(lambda: from_arrays(gaps, np.arange(9) % 2), "missing values: 1 in 'feature_1'")
    images = np.full((9, 4, 4), np.nan)
    refused(lambda: from_arrays(images, np.arange(9) % 2), "image 0 has a pixel that is not a finite number")


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"columns": [], "others": []},
        {"columns": [{"name": "a", "mean": 0, "deviation": 0, "median": 0}], "others": []},
        {"columns": [{"name": "a", "mean": float("nan"), "deviation": 1, "median": 0}], "others": []},
        {"columns": [{"name": "a", "categories": [1], "missing": False}], "others": []},
        {"columns": 3, "others": []},
        {"shape": [0, 4], "mean": 0, "deviation": 1},
        {"shape": [4, 4], "mean": "0", "deviation": 1},
        {"shape": [4, 4], "mean": 0, "deviation": 0},
        {"shape": [4, 4, 3], "mean": [0, 0], "deviation": [1, 1, 1]},
    ],
)
def test_a_damaged_encoding_is_refused(tables):
    refused(lambda: Encoding.of(tables), "encoding: not what Rookery stores")
