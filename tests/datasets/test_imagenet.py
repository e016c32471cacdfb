"""MiniImageNet and Tiny-ImageNet from small folders in the usual layouts; neither is on the machine of the tests."""

import io
import json
import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from rookery.cli.main import app
from rookery.datasets import DATASETS, DataError, fetch, imagenet, load, load_mini_imagenet, verify
from rookery.datasets.files import where

TINY = ("n02", "n01", "n03")
"""In the order of wnids.txt, which is none."""
MINI = {"train": ("n11", "n10", "n12"), "val": ("n20", "n21"), "test": ("n31", "n30")}
EACH = 4


def jpeg(rng, width, height, grey=False):
    pixels = rng.integers(0, 256, (height, width) if grey else (height, width, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


def pixels(content, side=None):
    image = Image.open(io.BytesIO(content)).convert("RGB")
    return np.asarray(image if side is None else image.resize((side, side), Image.Resampling.BILINEAR))


def put(folder, contents):
    for name, data in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def zipped(contents):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return out.getvalue()


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """(what the user has put there, the user's cache): empty ones of this test's own."""
    monkeypatch.setenv("ROOKERY_DATA", str(tmp_path / "given"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "given", tmp_path / "cache" / "rookery" / "data"
    forget()


def forget():
    load.cache_clear()
    load_mini_imagenet.cache_clear()


@pytest.fixture
def tiny(monkeypatch):
    """In the place of Tiny-ImageNet: 3 classes, 2 images of each, 4 to validate; the files by name."""
    source = replace(DATASETS["tiny-imagenet"], classes=3, train=6, test=4)
    monkeypatch.setitem(DATASETS, "tiny-imagenet", source)
    rng = np.random.default_rng(0)
    files = {f"train/{c}/images/{c}_{k}.JPEG": jpeg(rng, 64, 64, grey=k == 1) for c in TINY for k in (0, 1)}
    files |= {f"train/{c}/{c}_boxes.txt": b"n01_0.JPEG\t0\t0\t62\t63\n" for c in TINY}
    files |= {f"val/images/val_{k}.JPEG": jpeg(rng, 64, 64) for k in range(4)}
    files |= {"test/images/test_0.JPEG": jpeg(rng, 64, 64), "words.txt": b"n01\tbird\n"}
    labels = "n03", "n01", "n01", "n02"
    files["val/val_annotations.txt"] = "".join(
        f"val_{k}.JPEG\t{c}\t0\t0\t9\t9\n" for k, c in enumerate(labels)
    ).encode()
    files["wnids.txt"] = "\n".join(TINY).encode()
    return {f"tiny-imagenet-200/{name}": data for name, data in files.items()}


@pytest.fixture
def mini(monkeypatch):
    """In the place of MiniImageNet: 3 + 2 + 2 classes of 4 images, none of them square; the files of both layouts."""
    monkeypatch.setattr(imagenet, "PARTS", {part: len(classes) for part, classes in MINI.items()})
    monkeypatch.setattr(imagenet, "EACH", EACH)
    rng = np.random.default_rng(0)
    images = {
        (part, c, f"{c}_{k}.jpg"): jpeg(rng, 100, 60)
        for part, classes in MINI.items()
        for c in classes
        for k in range(EACH)
    }
    in_folders = {f"{part}/{c}/{name}": data for (part, c, name), data in images.items()}
    in_folders["train/.DS_Store"] = in_folders["val/n20/.n20_0.jpg"] = b"?"
    in_tables = {f"images/{name}": data for (*_, name), data in images.items()}
    for part in MINI:
        rows = [f"{name},{c}" for (each, c, name) in reversed(images) if each == part]
        in_tables[f"{part}.csv"] = "\r\n".join(["filename,label", *rows]).encode()
    return in_folders, in_tables


def one_line(call, *arguments):
    with pytest.raises(DataError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Tiny-ImageNet


def test_tiny_imagenet(folders, tiny):
    put(folders[0] / "tiny-imagenet", tiny)
    data = load("tiny-imagenet")
    assert data.train_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.test_labels.tolist() == [2, 0, 0, 1]
    assert (data.shape, data.classes, data.class_names) == ((64, 64, 3), 3, None)
    names = [f"tiny-imagenet-200/train/{c}/images/{c}_{k}.JPEG" for c in sorted(TINY) for k in (0, 1)]
    np.testing.assert_array_equal(data.train_inputs, [pixels(tiny[name]) for name in names])
    names = [f"tiny-imagenet-200/val/images/val_{k}.JPEG" for k in range(4)]
    np.testing.assert_array_equal(data.test_inputs, [pixels(tiny[name]) for name in names])
    np.testing.assert_allclose(np.array(data.mean) / 255, [0.485, 0.456, 0.406])
    np.testing.assert_allclose(np.array(data.deviation) / 255, [0.229, 0.224, 0.225])
    assert not any(a.flags.writeable for a in (data.train_inputs, data.train_labels, data.test_inputs))


def test_tiny_imagenet_from_its_zip(folders, tiny):
    put(folders[0] / "tiny-imagenet", tiny)
    unpacked = load("tiny-imagenet")
    put(folders[1] / "tiny-imagenet", {"tiny-imagenet-200.zip": zipped({"tiny-imagenet-200/": b"", **tiny})})
    (folders[0] / "tiny-imagenet").rename(folders[0] / "elsewhere")
    forget()
    packed = load("tiny-imagenet")
    for name in ("train_inputs", "train_labels", "test_inputs", "test_labels"):
        np.testing.assert_array_equal(getattr(packed, name), getattr(unpacked, name))


def test_photographs_are_decoded_once(folders, tiny, monkeypatch):
    put(folders[0] / "tiny-imagenet", tiny)
    first = load("tiny-imagenet")
    (kept,) = (folders[1] / "tiny-imagenet").iterdir()
    forget()
    with monkeypatch.context() as patch:
        patch.setattr(imagenet, "_decoded", lambda *arguments: pytest.fail("decoded again"))
        np.testing.assert_array_equal(load("tiny-imagenet").train_inputs, first.train_inputs)
    kept.write_bytes(kept.read_bytes()[:-30])
    forget()
    np.testing.assert_array_equal(load("tiny-imagenet").train_inputs, first.train_inputs)
    name = "tiny-imagenet-200/train/n01/images/n01_0.JPEG"
    put(folders[0] / "tiny-imagenet", {name: jpeg(np.random.default_rng(5), 64, 64)})
    forget()
    assert (load("tiny-imagenet").train_inputs[0] != first.train_inputs[0]).any()


TRAIN, VAL = "train/n02/images/n02_1.JPEG", "val/val_annotations.txt"
DAMAGES = [
    ({TRAIN: None}, "5 images train/CLASS/images/*.JPEG, must be 6: not the whole data set"),
    ({TRAIN: b""}, f"{TRAIN}: not an image that can be read"),
    ({TRAIN: jpeg(np.random.default_rng(0), 64, 64)[:200]}, f"{TRAIN}: not an image that can be read: "),
    ({TRAIN: jpeg(np.random.default_rng(0), 64, 32)}, f"{TRAIN}: 64×32 pixels, must be 64×64"),
    (
        {TRAIN: None, "train/n04/images/n04_1.JPEG": b""},
        "train/n04/images/n04_1.JPEG is of class 'n04', which is not in",
    ),
    ({"wnids.txt": None}, "there is no wnids.txt in it"),
    ({"wnids.txt": b"n01\nn02"}, "2 classes in wnids.txt, must be 3"),
    ({VAL: None}, f"there is no {VAL} in it"),
    ({VAL: b"val_0.JPEG\tn01\t0\n"}, f"1 lines in {VAL}, must be 4"),
    ({VAL: b"a\nb\nc\nd\n"}, "val/images/a is of class '', which is not in wnids.txt"),
    ({"val/images/val_2.JPEG": None}, "there is no val/images/val_2.JPEG in it"),
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("change", "line"), DAMAGES)
def test_damaged_tiny_imagenet(folders, tiny, change, line, packed):
    changed = {**tiny, **{f"tiny-imagenet-200/{name}": data for name, data in change.items()}}
    whole = {name: data for name, data in changed.items() if data is not None}
    put(folders[0] / "tiny-imagenet", {"tiny-imagenet-200.zip": zipped(whole)} if packed else whole)
    message = one_line(load, "tiny-imagenet")
    assert message.startswith(str(folders[0] / "tiny-imagenet" / "tiny-imagenet-200"))
    assert line in message


def test_a_damaged_zip(folders, tiny):
    whole = zipped(tiny)
    broken = bytearray(whole)
    broken[whole.index(tiny["tiny-imagenet-200/wnids.txt"])] ^= 1
    for data, line in (
        (b"", "not a whole zip"),
        (whole[:-40], "not a whole zip"),
        (bytes(broken), "wnids.txt cannot be read: Bad CRC-32"),
        (zipped({"another/wnids.txt": b""}), "there is no wnids.txt in it"),
    ):
        put(folders[0] / "tiny-imagenet", {"tiny-imagenet-200.zip": data})
        assert f"tiny-imagenet-200.zip: {line}" in one_line(load, "tiny-imagenet")


# MiniImageNet


@pytest.mark.parametrize("layout", [0, 1])
def test_mini_imagenet(folders, mini, layout):
    put(folders[0] / "mini-imagenet", mini[layout])
    data = load_mini_imagenet()
    assert data.names == ("n10", "n11", "n12", "n20", "n21", "n30", "n31")
    assert data.part.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert data.images.shape == (7, EACH, 84, 84, 3)
    expected = [[pixels(mini[1][f"images/{c}_{k}.jpg"], 84) for k in range(EACH)] for c in data.names]
    np.testing.assert_array_equal(data.images, expected)
    assert not data.images.flags.writeable
    assert load_mini_imagenet() is data
    assert [path.name for path in (folders[1] / "mini-imagenet").iterdir()] != []
    with pytest.raises(ValueError, match=r"use load_mini_imagenet\(\)"):
        load("mini-imagenet")


@pytest.mark.parametrize(
    ("layout", "change", "line"),
    [
        (0, {"train/n10/n10_0.jpg": None}, "3 images of class n10 in train, must be 4: not the whole data set"),
        (0, {f"val/n21/n21_{k}.jpg": None for k in range(EACH)}, "1 classes in val, must be 2"),
        (0, {"test/n30/n30_1.jpg": b"\xff\xd8\xff"}, "test/n30/n30_1.jpg: not an image that can be read"),
        (1, {"val.csv": b"name,kind\na,b"}, "val.csv must have the columns filename and label, has ['name', 'kind']"),
        (1, {"val.csv": b""}, "val.csv must have the columns filename and label, has None"),
        (1, {"images/n31_3.jpg": None}, "there is no images/n31_3.jpg in it"),
    ],
)
def test_damaged_mini_imagenet(folders, mini, layout, change, line):
    whole = {name: data for name, data in {**mini[layout], **change}.items() if data is not None}
    put(folders[0] / "mini-imagenet", whole)
    message = one_line(load_mini_imagenet)
    assert message.startswith(str(folders[0] / "mini-imagenet"))
    assert line in message


def test_a_class_is_in_one_part_only(folders, mini):
    renamed = {"val.csv": mini[1]["val.csv"].replace(b",n20", b",n10")}
    put(folders[0] / "mini-imagenet", {**mini[1], **renamed})
    assert "class n10 is in more than one of train, val, test" in one_line(load_mini_imagenet)


# Data sets that a user must provide


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tiny-imagenet", "the official folder tiny-imagenet-200, or tiny-imagenet-200.zip as it is"),
        (
            "mini-imagenet",
            "the folders train, val and test of CLASS/*.jpg, or images/*.jpg with train.csv, val.csv and",
        ),
    ],
)
def test_a_missing_one_says_what_is_expected_and_where(folders, name, told):
    load_it = load_mini_imagenet if name == "mini-imagenet" else lambda: load(name)
    message = one_line(load_it)
    assert message.startswith(f"{name}: not here, and nobody may hand it on: put {told}")
    assert str(folders[1] / name) in message
    assert f"ROOKERY_DATA to a folder that has it in {name}/" in message
    assert where(DATASETS[name]) is None
    assert {state.status for state in verify(name)} == {"missing"}


def test_where_it_is(folders, mini):
    source = DATASETS["mini-imagenet"]
    put(folders[1] / "mini-imagenet", mini[0])
    assert where(source) == folders[1] / "mini-imagenet"
    put(folders[0] / "mini-imagenet", {name: data for name, data in mini[1].items() if name != "test.csv"})
    assert where(source) == folders[1] / "mini-imagenet"  # a part is none
    put(folders[0] / "mini-imagenet", mini[1])
    assert where(source) == folders[0] / "mini-imagenet"
    assert [path.name for path in fetch("mini-imagenet")] == ["images", "train.csv", "val.csv", "test.csv"]
    assert [state.status for state in verify("mini-imagenet")] == ["here"] * 4


def run(*arguments):
    return CliRunner().invoke(app, ["data", *arguments], env={"COLUMNS": "300"})


def test_the_command(folders, mini):
    rows = {line.split("│")[1].strip(): line for line in run("list").output.splitlines() if "│" in line}
    assert [cell.strip() for cell in rows["tiny-imagenet"].split("│")[2:6]] == ["64×64×3", "200", "not here", "by hand"]
    listed = {row["name"]: row for row in json.loads(run("list", "--json").output)}
    assert {name for name, row in listed.items() if row["by_hand"]} == {"mini-imagenet", "tiny-imagenet"}
    assert run("verify", "mini-imagenet").output == "".join(f"missing mini-imagenet/{part}\n" for part in MINI)
    assert run("verify", "mini-imagenet").exit_code == 1
    failed = run("fetch", "tiny-imagenet")
    assert failed.exit_code == 2
    assert len(failed.stderr.splitlines()) == 1
    put(folders[0] / "mini-imagenet", mini[0])
    assert run("fetch", "mini-imagenet").output == f"mini-imagenet: {folders[0] / 'mini-imagenet'}\n"
    good = run("verify", "mini-imagenet")
    assert good.exit_code == 0
    expected = f"here    {folders[0] / 'mini-imagenet' / 'train'} (no checksums are published)"
    assert good.output.splitlines()[0] == expected


@pytest.mark.parametrize("name", ["mini-imagenet", "tiny-imagenet"])
def test_the_real_one(name, tmp_path, monkeypatch):
    """Whoever has it finds here whether it is read as a whole."""
    if not os.environ.get("ROOKERY_DATA") or where(DATASETS[name]) is None:
        pytest.skip(f"$ROOKERY_DATA has no {name}")
    source = DATASETS[name]
    if name == "mini-imagenet":
        data = load_mini_imagenet()
        assert data.images.shape == (source.classes, 600, *source.shape)
        assert np.bincount(data.part).tolist() == [64, 16, 20]
    else:
        tiny = load(name)
        assert np.bincount(tiny.train_labels).tolist() == [500] * 200
        assert np.bincount(tiny.test_labels).tolist() == [50] * 200
