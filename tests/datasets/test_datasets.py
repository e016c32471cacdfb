"""Readers on small files in the official formats, checksums, downloads from a server of the test, ``rookery data``."""

import gzip
import hashlib
import http.server
import io
import json
import os
import socket
import struct
import tarfile
import threading
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from rookery.cli.main import app
from rookery.datasets import DATASETS, DataError, digits, download, files, load, load_omniglot, verify
from rookery.datasets.download import fetch_from
from rookery.datasets.formats import read_cifar, read_idx, read_png
from rookery.datasets.omniglot import area_average, read_omniglot
from rookery.datasets.sources import DataFile

RNG = np.random.default_rng(0)
HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # plain http, for the server of the test only


def sha256(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def idx(values, kind=8):
    header = struct.pack(">HBB", 0, kind, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.astype(np.uint8).tobytes()


def records(images, labels):
    return b"".join(bytes([c]) + image.transpose(2, 0, 1).tobytes() for image, c in zip(images, labels, strict=True))


def png(bits, depth=1, row_filter=0, idats=1):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packed = zlib.compress(b"".join(bytes([row_filter]) + np.packbits(row).tobytes() for row in bits))
    cuts = [len(packed) * i // idats for i in range(idats + 1)]
    header = struct.pack(">IIBBBBB", bits.shape[1], bits.shape[0], depth, 0, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"tIME", bytes(7)),
            *(chunk(b"IDAT", packed[a:b]) for a, b in pairwise(cuts)),
            chunk(b"IEND", b""),
        ]
    )


def zipped(entries):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return out.getvalue()


def tarred(entries, link=None):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in entries.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        if link:
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
    return out.getvalue()


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """(what the user has put there, the user's cache): empty ones of this test's own."""
    monkeypatch.setenv("ROOKERY_DATA", str(tmp_path / "given"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    load.cache_clear()
    load_omniglot.cache_clear()
    yield tmp_path / "given", tmp_path / "cache" / "rookery" / "data"
    load.cache_clear()
    load_omniglot.cache_clear()


def put(folder, contents):
    for name, data in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def left_behind(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.fixture
def mnist(monkeypatch):
    """In the place of MNIST: 12 and 5 images of 4×3 pixels; the contents of the files by name."""
    shapes = {"train-images-idx3-ubyte": (12, 4, 3), "t10k-images-idx3-ubyte": (5, 4, 3)}
    plain = {name: idx(RNG.integers(0, 256, shape)) for name, shape in shapes.items()}
    plain["train-labels-idx1-ubyte"] = idx(np.arange(12) % 10)
    plain["t10k-labels-idx1-ubyte"] = idx(np.arange(5))
    packed = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in plain.items()}
    listed = tuple(
        DataFile(old.name, len(packed[old.name]), (sha256(packed[old.name]),), sha256(plain[old.name[:-3]]))
        for old in DATASETS["mnist"].files
    )
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], files=listed))
    return packed


@pytest.fixture
def cifar(monkeypatch):
    """In the place of CIFAR-10: batches of 3 images; (contents of the files by name, archive, images, labels)."""
    images, labels = RNG.integers(0, 256, (18, 32, 32, 3), np.uint8), RNG.integers(0, 10, 18)
    names = [file.name for file in DATASETS["cifar-10"].files]
    contents = {name: records(images[3 * i : 3 * i + 3], labels[3 * i : 3 * i + 3]) for i, name in enumerate(names)}
    archive = tarred({"cifar-10-batches-bin/readme.html": b"!", "../evil.bin": b"!", **contents})
    listed = tuple(DataFile(name, len(data), (sha256(data),)) for name, data in contents.items())
    packed = DataFile("cifar-10-binary.tar.gz", len(archive), (sha256(archive),))
    monkeypatch.setitem(DATASETS, "cifar-10", replace(DATASETS["cifar-10"], files=listed, archive=packed))
    return contents, archive, images, labels


@pytest.fixture
def omniglot(monkeypatch):
    """In the place of Omniglot: 2 + 1 alphabets of 2 characters; (contents of the files by name, ink by character)."""
    ink, contents, number = [], {}, 0
    for part, alphabets in (("background", ("Greek", "Latin")), ("evaluation", ("Angelic",))):
        entries = {f"images_{part}/": b"", "__MACOSX/ignored.png": b"?"}
        for alphabet in alphabets:
            for character in (1, 2):
                number += 1
                ink.append(RNG.random((20, 105, 105)) < 0.1)
                for k, drawing in enumerate(ink[-1]):
                    name = f"images_{part}/{alphabet}/character{character:02}/{number:04}_{k + 1:02}.png"
                    entries[name] = png(~drawing)
        contents[f"images_{part}.zip"] = zipped(dict(reversed(entries.items())))  # the order in the zip is not used
    # the first file by the first of its two checksums, the second by the second
    md5 = f"md5:{hashlib.md5(contents['images_background.zip']).hexdigest()}"
    other = (md5, "sha256:0"), ("md5:0", sha256(contents["images_evaluation.zip"]))
    listed = tuple(
        DataFile(name, len(data), checksums) for (name, data), checksums in zip(contents.items(), other, strict=True)
    )
    monkeypatch.setitem(DATASETS, "omniglot", replace(DATASETS["omniglot"], files=listed))
    return contents, np.array(ink)


class Server:
    """Answers with ``pages[path]``: bytes, or a function that writes the answer itself; else 404."""

    def __init__(self):
        self.pages, self.asked, self.stop = {}, [], threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append(self.path)
                page = outer.pages.get(self.path)
                if page is None:
                    self.send_error(404)
                elif callable(page):
                    page(self)
                else:
                    outer.start(self, len(page))
                    self.wfile.write(page)

            def log_message(self, *args):
                pass

        self.httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.httpd.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    @staticmethod
    def start(handler, length):
        handler.send_response(200)
        if length is not None:
            handler.send_header("Content-Length", str(length))
        handler.end_headers()

    def mirror(self, name):
        return f"http://127.0.0.1:{self.httpd.server_port}/{name}/"

    def close(self):
        self.stop.set()
        self.httpd.shutdown()
        self.thread.join()
        self.httpd.server_close()


@pytest.fixture
def server():
    running = Server()
    yield running
    running.close()


@pytest.fixture
def nobody():
    """A port of this machine on which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


# Readers


@pytest.mark.parametrize("shape", [(7,), (3, 5, 4), (0, 2)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx(tmp_path, shape, pack):
    values = RNG.integers(0, 256, shape)
    (tmp_path / "file").write_bytes(pack(idx(values)))
    np.testing.assert_array_equal(read_idx(tmp_path / "file"), values)


IDX = idx(np.arange(24).reshape(2, 3, 4))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (IDX[:3], "truncated"),
        (IDX[:9], "truncated"),
        (IDX[:-1], "23 values where the header says 2 × 3 × 4"),
        (IDX + b"?", "25 values"),
        (gzip.compress(IDX, mtime=0)[:-9], "truncated"),
        (gzip.compress(IDX, mtime=0)[:20] + b"?????" + gzip.compress(IDX, mtime=0)[25:], "damaged"),
        (b"\x50" + IDX[1:], "not an IDX file"),
        (idx(np.zeros(3), kind=13), "not an IDX file of unsigned bytes"),
    ],
)
def test_idx_refuses(tmp_path, data, reason):
    (tmp_path / "some-file").write_bytes(data)
    with pytest.raises(DataError, match=f"some-file.*{reason}"):
        read_idx(tmp_path / "some-file")


def test_cifar(tmp_path):
    images, labels = RNG.integers(0, 256, (4, 32, 32, 3), np.uint8), np.array([9, 0, 3, 3])
    (tmp_path / "batch").write_bytes(records(images, labels))
    read_images, read_labels = read_cifar(tmp_path / "batch")
    np.testing.assert_array_equal(read_images, images)
    np.testing.assert_array_equal(read_labels, labels)
    assert read_images.flags.c_contiguous


@pytest.mark.parametrize(
    ("data", "reason"), [(b"", "0 bytes"), (bytes(3072), "3072 bytes"), (bytes([10]) + bytes(3072), "label 10")]
)
def test_cifar_refuses(tmp_path, data, reason):
    (tmp_path / "batch").write_bytes(data)
    with pytest.raises(DataError, match=f"batch.*{reason}"):
        read_cifar(tmp_path / "batch")


@pytest.mark.parametrize("shape", [(105, 105), (3, 8), (5, 1)])
@pytest.mark.parametrize("idats", [1, 3])
def test_png(shape, idats):
    bits = RNG.integers(0, 2, shape, np.uint8)
    np.testing.assert_array_equal(read_png(png(bits, idats=idats), "file"), bits)
    np.testing.assert_array_equal(matplotlib.image.imread(io.BytesIO(png(bits))), bits)  # the test writes true PNGs


BITS = np.eye(9, dtype=np.uint8)


@pytest.mark.parametrize(
    "data",
    [b"", b"GIF89a", png(BITS)[:40], png(BITS)[:-20], png(BITS, depth=8), png(BITS, row_filter=1), png(BITS)[:33]],
    ids=["empty", "gif", "cut early", "cut late", "8 bits", "filter", "no data"],
)
def test_png_refuses(data):
    with pytest.raises(DataError, match="some-file"):
        read_png(data, "some-file")


def test_area_average():
    ink = RNG.integers(0, 2, (3, 105, 105), np.uint8)
    # 105 · 4 = 28 · 15: with each pixel cut in 4 × 4, a new pixel is a block of 15 × 15
    share = ink.repeat(4, 1).repeat(4, 2).reshape(3, 28, 15, 28, 15).mean((2, 4))
    np.testing.assert_array_equal(area_average(ink, 28), np.rint(255 * share))
    assert area_average(np.ones((1, 105, 105), np.uint8), 28).min() == 255


def test_omniglot(tmp_path, omniglot):
    contents, ink = omniglot
    put(tmp_path, contents)
    data = read_omniglot([tmp_path / name for name in contents])
    assert data.alphabets == ("Greek", "Latin", "Angelic")
    assert data.alphabet.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.images.shape == (6, 20, 28, 28)
    np.testing.assert_array_equal(data.images, [area_average(drawings, 28) for drawings in ink])


def test_omniglot_refuses(tmp_path, omniglot):
    contents, _ = omniglot
    whole = contents["images_evaluation.zip"]
    drawing = "set/Greek/character01/0001_{:02}.png"
    white = png(np.ones((105, 105), np.uint8))
    few = zipped({drawing.format(k): white for k in range(19)})
    small = zipped({drawing.format(k): png(BITS) for k in range(20)})
    damaged = bytearray(whole)
    damaged[whole.index(b"0005_01.png") + len("0005_01.png") + 50] ^= 1  # in the packed pixels of the first drawing
    for data, reason in (
        (b"", "not a whole zip"),
        (whole[:-30], "not a whole zip"),
        (bytes(damaged), "not a whole zip"),
        (zipped({"a": b""}), "no drawings"),
        (few, "19 drawings of Greek/character01"),
        (small, "must be 105×105"),
    ):
        (tmp_path / "set.zip").write_bytes(data)
        with pytest.raises(DataError, match=rf"set\.zip.*{reason}"):
            read_omniglot([tmp_path / "set.zip"])


# Where files are found


def test_load(folders, mnist):
    put(folders[0] / "mnist", mnist)
    data = load("mnist")
    assert data.train_inputs.shape == (12, 4, 3)
    assert data.train_labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert data.test_labels.tolist() == [0, 1, 2, 3, 4]
    assert data.train_labels.dtype == np.int32
    np.testing.assert_array_equal(
        data.test_inputs.ravel(), list(gzip.decompress(mnist["t10k-images-idx3-ubyte.gz"])[16:])
    )
    assert (data.mean, data.deviation) == (0.1307 * 255, 0.3081 * 255)
    assert load("mnist") is data
    with pytest.raises(ValueError, match="read-only"):
        data.train_inputs[0] = 0
    assert left_behind(folders[1]) == []


def test_digits_are_those_of_scikit_learn():
    theirs = load_digits()
    ours = digits(test_fraction=0.0)
    order = np.random.default_rng(0).permutation(len(theirs.target))
    np.testing.assert_array_equal(ours.train_inputs, theirs.images[order])
    np.testing.assert_array_equal(ours.train_labels, theirs.target[order])


def test_load_digits_is_shared_and_read_only():
    data = load("digits")
    np.testing.assert_array_equal(data.train_inputs, digits().train_inputs)
    assert load("digits") is data
    assert not any(
        a.flags.writeable for a in (data.train_inputs, data.train_labels, data.test_inputs, data.test_labels)
    )
    assert digits().train_inputs.flags.writeable
    source = DATASETS["digits"]
    assert (source.train, source.test) == (len(data.train_labels), len(data.test_labels))
    assert (source.shape, source.classes) == (data.shape, data.classes)


def test_load_cifar(folders, cifar):
    contents, _, images, labels = cifar
    put(folders[0] / "cifar-10", contents)
    data = load("cifar-10")
    np.testing.assert_array_equal(data.train_inputs, images[:15])
    np.testing.assert_array_equal(data.train_labels, labels[:15])
    np.testing.assert_array_equal(data.test_inputs, images[15:])
    np.testing.assert_array_equal(data.test_labels, labels[15:])
    assert len(data.mean) == len(data.deviation) == 3


def test_given_folder_comes_before_the_cache_and_packed_before_unpacked(folders, mnist):
    given, cache = (folder / "mnist" for folder in folders)
    file = DATASETS["mnist"].files[0]
    unpacked = {name[:-3]: gzip.decompress(data) for name, data in mnist.items()}
    found = []
    for folder, contents in ((cache, unpacked), (cache, mnist), (given, unpacked), (given, mnist)):
        put(folder, contents)
        path, checksums = files.locate("mnist", file)
        found.append(path)
        assert sha256(path.read_bytes()) in checksums
        assert {state.status for state in verify("mnist")} == {"ok"}
    assert found == [cache / file.name[:-3], cache / file.name, given / file.name[:-3], given / file.name]


def test_unpacked_files_load(folders, mnist):
    put(folders[1] / "mnist", {name[:-3]: gzip.decompress(data) for name, data in mnist.items()})
    assert load("mnist").train_inputs.shape == (12, 4, 3)


@pytest.mark.parametrize("value", ["", "some/where"])
def test_cache_folder_when_xdg_is_not_absolute(monkeypatch, value):
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("HOME", "/somebody")
    assert files.cache_folder("mnist") == Path("/somebody/.cache/rookery/data/mnist")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("minst", "; did you mean 'mnist'?"),
        ("Fashion_MNIST", "; did you mean 'fashion-mnist'?"),
        ("cifar", "; did you mean 'cifar-10'?"),
        ("@", "."),
    ],
)
def test_unknown_name(name, hint):
    with pytest.raises(ValueError) as caught:
        load(name)
    assert str(caught.value) == f"dataset: there is no '{name}'{hint} There are: {', '.join(DATASETS)}"


def test_omniglot_is_not_loaded_by_name():
    with pytest.raises(ValueError, match="load_omniglot"):
        load("omniglot")


# Checksums


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:]])
def test_truncated_or_tampered_files_are_refused(folders, mnist, where, change):
    name = "train-images-idx3-ubyte.gz"
    bad = change(mnist[name])
    put(folders[where] / "mnist", {**mnist, name: bad})
    with pytest.raises(DataError, match=f"{name}.*expected {sha256(mnist[name])}, found {sha256(bad)}"):
        load("mnist")


def test_shapes_of_images_and_labels_must_fit(folders, mnist, monkeypatch):
    contents = {**mnist, "train-labels-idx1-ubyte.gz": idx(np.zeros(11))}
    source = DATASETS["mnist"]
    listed = tuple(replace(file, checksums=(sha256(contents[file.name]),)) for file in source.files)
    monkeypatch.setitem(DATASETS, "mnist", replace(source, files=listed))
    put(folders[0] / "mnist", contents)
    with pytest.raises(DataError, match=r"train-images.*train-labels.*\(12, 4, 3\) and \(11,\)"):
        load("mnist")


def test_a_file_is_hashed_once(folders, mnist, monkeypatch):
    put(folders[0] / "mnist", mnist)
    hashed, true = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: (hashed.append(file.name), true(file, kind))[1])
    verify("mnist")
    verify("mnist")
    load("mnist")
    assert len(hashed) == 4
    put(folders[0] / "mnist", {"t10k-labels-idx1-ubyte.gz": b"changed"})
    assert [state.status for state in verify("mnist")] == ["ok", "ok", "ok", "bad"]
    assert len(hashed) == 5


def test_the_listed_files_are_complete():
    for source in DATASETS.values():
        assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in source.mirrors)
        assert len(source.mirrors) >= 2 or not source.files
        for file in (*source.files, *filter(None, [source.archive])):
            for checksum in (*file.checksums, *filter(None, [file.unpacked])):
                algorithm, digits_ = checksum.split(":")
                assert len(bytes.fromhex(digits_)) == hashlib.new(algorithm).digest_size


# The kept arrays of Omniglot


def test_omniglot_is_decoded_once(folders, omniglot, monkeypatch):
    put(folders[0] / "omniglot", omniglot[0])
    first = load_omniglot()
    (kept,) = left_behind(folders[1])
    assert load_omniglot() is first
    assert not first.images.flags.writeable
    assert not first.alphabet.flags.writeable
    load_omniglot.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr("rookery.datasets.omniglot.read_omniglot", lambda paths: pytest.fail("decoded again"))
        again = load_omniglot()
    np.testing.assert_array_equal(again.images, first.images)
    np.testing.assert_array_equal(again.alphabet, first.alphabet)
    assert again.alphabets == first.alphabets
    assert again.alphabet.dtype == first.alphabet.dtype
    assert not again.images.flags.writeable

    path = folders[1] / kept
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(first.images[3].tobytes())] ^= 1
    for damaged in (b"", whole[: len(whole) // 2], bytes(flipped), b"?" * 100):
        path.write_bytes(damaged)
        load_omniglot.cache_clear()
        np.testing.assert_array_equal(load_omniglot().images, first.images)
        assert path.read_bytes() != damaged
    assert left_behind(folders[1]) == [kept]


def test_other_omniglot_files_are_not_taken_for_the_kept_ones(folders, omniglot, monkeypatch):
    contents, _ = omniglot
    put(folders[0] / "omniglot", contents)
    before = load_omniglot()
    swapped = contents["images_evaluation.zip"], contents["images_background.zip"]
    source = DATASETS["omniglot"]
    listed = tuple(replace(file, checksums=(sha256(data),)) for file, data in zip(source.files, swapped, strict=True))
    monkeypatch.setitem(DATASETS, "omniglot", replace(source, files=listed))
    put(folders[0] / "omniglot", dict(zip(contents, swapped, strict=True)))
    load_omniglot.cache_clear()
    after = load_omniglot()
    assert after.alphabets == ("Angelic", "Greek", "Latin")
    np.testing.assert_array_equal(after.images, np.roll(before.images, 2, 0))
    assert len(left_behind(folders[1])) == 2


def test_omniglot_without_a_cache_folder(folders, omniglot):
    put(folders[0] / "omniglot", omniglot[0])
    folders[1].parent.mkdir(parents=True)
    folders[1].write_bytes(b"a file where the folder should be")
    assert load_omniglot().images.shape == (6, 20, 28, 28)


# Downloads


def serve(server, mirror, contents):
    server.pages |= {f"/{mirror}/{name}": page for name, page in contents.items()}
    return server.mirror(mirror)


def test_fetch(folders, mnist, server, capfd):
    mirror = serve(server, "a", mnist)
    paths = fetch_from(DATASETS["mnist"], [mirror], HTTP)
    assert [path.name for path in paths] == [file.name for file in DATASETS["mnist"].files]
    assert left_behind(folders[1] / "mnist") == sorted(mnist)
    assert all(path.read_bytes() == mnist[path.name] for path in paths)
    assert len(server.asked) == 4
    assert fetch_from(DATASETS["mnist"], [mirror], HTTP) == paths
    assert len(server.asked) == 4
    assert load("mnist").train_inputs.shape == (12, 4, 3)
    assert capfd.readouterr() == ("", "")  # the progress bar is for terminals


def test_only_what_is_missing_is_fetched(folders, mnist, server):
    names = list(mnist)
    put(folders[0] / "mnist", {names[0]: mnist[names[0]]})
    put(folders[1] / "mnist", {names[1][:-3]: gzip.decompress(mnist[names[1]])})
    fetch_from(DATASETS["mnist"], [serve(server, "a", mnist)], HTTP)
    assert sorted(server.asked) == sorted(f"/a/{name}" for name in names[2:])


def cut_off(data, declared=True):
    def page(handler):
        Server.start(handler, len(data) if declared else None)
        handler.wfile.write(data[: len(data) // 2])

    return page


def endless(handler):
    Server.start(handler, None)
    for _ in range(1000):
        try:
            handler.wfile.write(bytes(1 << 16))
        except OSError:  # the other side has hung up
            return


FAULTS = {
    "cut": (lambda data: cut_off(data), r"cut off after \d+ of \d+ bytes"),
    "cut, no length": (lambda data: cut_off(data, declared=False), "expected sha256:.*, found sha256:"),
    "wrong": (lambda data: gzip.compress(b"another file", mtime=0), "expected sha256:.*, found sha256:"),
    "empty": (lambda data: b"", "found sha256:e3b0c44298fc1c149afb"),
    "endless": (lambda data: endless, r"sends more than \d+ bytes"),
    "absent": (lambda data: None, "HTTP Error 404"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_mirror(folders, mnist, server, fault):
    spoil, reason = FAULTS[fault]
    broken = serve(server, "broken", {name: spoil(data) for name, data in mnist.items()})
    with pytest.raises(DataError, match=f"mnist: train-images-idx3-ubyte.gz could not be downloaded.*({reason})"):
        fetch_from(DATASETS["mnist"], [broken], HTTP)
    assert left_behind(folders[1]) == []
    paths = fetch_from(DATASETS["mnist"], [broken, serve(server, "good", mnist)], HTTP)
    assert all(path.read_bytes() == mnist[path.name] for path in paths)
    assert left_behind(folders[1] / "mnist") == sorted(mnist)


def test_a_server_that_does_not_answer(folders, mnist, server, monkeypatch):
    monkeypatch.setattr(download, "_TIMEOUT", 0.1)
    silent = serve(server, "silent", dict.fromkeys(mnist, lambda handler: server.stop.wait(5)))
    with pytest.raises(DataError, match="timed out"):
        fetch_from(DATASETS["mnist"], [silent], HTTP)
    fetch_from(DATASETS["mnist"], [silent, serve(server, "good", mnist)], HTTP)
    assert left_behind(folders[1] / "mnist") == sorted(mnist)


def test_offline(folders, mnist, nobody):
    with pytest.raises(DataError) as caught:
        fetch_from(DATASETS["mnist"], [f"http://{nobody}/a/", f"http://{nobody}/b/"], HTTP)
    message = str(caught.value)
    assert "\n" not in message
    assert message.count(f"{nobody}: ") == 2
    assert "refused" in message
    assert all(name in message for name in mnist)
    assert DATASETS["mnist"].mirrors[0] in message
    assert str(folders[1] / "mnist") in message
    assert "ROOKERY_DATA" in message
    assert left_behind(folders[1]) == []


def test_an_interrupted_download_leaves_nothing(folders, mnist, server):
    name = next(iter(mnist))

    class Interrupted:
        length = len(mnist[name])

        def __init__(self, request, timeout):
            self.parts = [mnist[name][:20]]

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def read(self, size):
            if self.parts:
                return self.parts.pop()
            assert any(name.endswith(".part") for name in left_behind(folders[1]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_from(DATASETS["mnist"], [server.mirror("a"), server.mirror("b")], Interrupted)
    assert left_behind(folders[1]) == []


def test_a_full_disk_is_not_taken_for_a_faulty_mirror(folders, mnist, server, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    mirror = serve(server, "a", mnist)
    with pytest.raises(OSError, match="No space left"):
        fetch_from(DATASETS["mnist"], [mirror, mirror], HTTP)
    assert len(server.asked) == 1
    assert left_behind(folders[1]) == []


def test_only_https(folders, mnist, server):
    mirror = serve(server, "a", mnist)
    with pytest.raises(urllib.error.URLError, match="unknown url type: http"):
        download._https().open(mirror)
    with pytest.raises(DataError, match="unknown url type: http"):
        fetch_from(DATASETS["mnist"], [mirror], download._https().open)
    assert server.asked == []


def test_a_bad_file_is_not_overwritten(folders, mnist, server):
    put(folders[1] / "mnist", {"train-images-idx3-ubyte.gz": b"mine"})
    with pytest.raises(DataError, match="expected"):
        fetch_from(DATASETS["mnist"], [serve(server, "a", mnist)], HTTP)
    assert left_behind(folders[1] / "mnist") == ["train-images-idx3-ubyte.gz"]
    assert server.asked == []


def test_what_is_downloaded_is_known_by_its_sha256():
    """All but Omniglot's two archives, which their authors pack with dates: of that packing only the MD5 is published."""
    for each in DATASETS.values():
        for file in (*each.files, *([each.archive] if each.archive else [])):
            kinds = {checksum.partition(":")[0] for checksum in file.checksums}
            assert "sha256" in kinds, file.name
            assert kinds == {"sha256"} or each.name == "omniglot", file.name


def test_fetch_cifar(folders, cifar, server):
    contents, archive, images, _ = cifar
    broken = serve(server, "broken", {"cifar-10-binary.tar.gz": archive[:-1]})
    good = serve(server, "good", {"cifar-10-binary.tar.gz": archive})
    paths = fetch_from(DATASETS["cifar-10"], [broken, good], HTTP)
    assert left_behind(folders[1].parent.parent) == sorted(f"rookery/data/cifar-10/{name}" for name in contents)
    assert all(path.read_bytes() == data for path, data in zip(paths, contents.values(), strict=True))
    assert [path.name for path in folders[1].joinpath("cifar-10").iterdir()] == ["cifar-10-batches-bin"]
    np.testing.assert_array_equal(load("cifar-10").test_inputs, images[15:])


def test_a_faulty_archive(folders, cifar, server, monkeypatch):
    contents, archive, _, _ = cifar
    (first, data), *others = contents.items()
    source = DATASETS["cifar-10"]
    for bad, reason in (
        (archive[: len(archive) // 2], "not a whole tar.gz"),
        (b"no archive", "not a whole tar.gz"),
        (tarred(dict(others)), f"does not contain {first}"),
        (tarred(dict(others), link=first), f"does not contain {first}"),
        (tarred({first: data[:-1], **dict(others)}), "data_batch_1.bin: not the official file: expected sha256"),
    ):
        packed = replace(source.archive, bytes=len(bad), checksums=(sha256(bad),))
        monkeypatch.setitem(DATASETS, "cifar-10", replace(source, archive=packed))
        mirror = serve(server, "a", {"cifar-10-binary.tar.gz": bad})
        with pytest.raises(DataError, match=f"^cifar-10: .*{reason}.*unpack it in {folders[1] / 'cifar-10'}"):
            fetch_from(DATASETS["cifar-10"], [mirror], HTTP)
        for kept in left_behind(folders[1] / "cifar-10"):  # files that were whole may stay
            assert (folders[1] / "cifar-10" / kept).read_bytes() == contents[kept]
            (folders[1] / "cifar-10" / kept).unlink()


# rookery data


def run(*arguments):
    return CliRunner().invoke(app, ["data", *arguments], env={"COLUMNS": "300"})


def test_data_list(folders, mnist):
    shown = run("list").output
    assert {line.split("│")[4].strip() for line in shown.splitlines() if "│" in line} == {"not here", "scikit-learn"}
    put(folders[1] / "mnist", mnist)
    rows = {
        line.split("│")[1].strip(): [*map(str.strip, line.split("│"))]
        for line in run("list").output.splitlines()
        if "│" in line
    }
    assert rows["mnist"][2:5] == ["28×28", "10", str(folders[1] / "mnist")]
    assert rows["cifar-10"][2:6] == ["32×32×3", "10", "not here", "184.4"]
    listed = {row["name"]: row for row in json.loads(run("list", "--json").output)}
    assert list(listed) == list(DATASETS)
    assert listed["mnist"]["where"] == str(folders[1] / "mnist")
    assert listed["omniglot"]["where"] is None
    assert listed["omniglot"]["shape"] == [28, 28]
    (folders[1] / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert {row["where"] for row in json.loads(run("list", "--json").output)} == {None, "scikit-learn"}


def test_data_verify(folders, mnist):
    assert run("verify").exit_code == 0
    missing = run("verify", "mnist")
    assert missing.exit_code == 1
    assert missing.output.count("missing ") == 4
    put(folders[0] / "mnist", mnist)
    good = run("verify", "mnist")
    assert good.exit_code == 0
    assert [line.split()[0] for line in good.output.splitlines()] == ["ok"] * 4
    assert all(sha256(data) in good.output for data in mnist.values())
    name = "t10k-labels-idx1-ubyte.gz"
    put(folders[0] / "mnist", {name: mnist[name][:-1]})
    bad = run("verify")
    assert bad.exit_code == 1
    (line,) = (line for line in bad.output.splitlines() if line.startswith("bad"))
    assert f"{name} expected {sha256(mnist[name])} found {sha256(mnist[name][:-1])}" in line
    reported = run("verify", "mnist", "--json")
    assert reported.exit_code == 1
    assert json.loads(reported.output)[3] == {
        "name": "mnist",
        "file": name,
        "path": str(folders[0] / "mnist" / name),
        "status": "bad",
        "expected": [sha256(mnist[name])],
        "found": [sha256(mnist[name][:-1])],
    }


def test_data_fetch(folders, mnist, server, monkeypatch):
    source = replace(DATASETS["mnist"], mirrors=(serve(server, "a", mnist),))
    monkeypatch.setitem(DATASETS, "mnist", source)
    monkeypatch.setattr(download, "_https", lambda: urllib.request.build_opener(urllib.request.ProxyHandler({})))
    shown = run("fetch", "mnist", "digits")
    assert shown.exit_code == 0
    assert shown.output == f"mnist: {folders[1] / 'mnist'}\ndigits: part of scikit-learn\n"
    assert left_behind(folders[1] / "mnist") == sorted(mnist)


def test_data_fetch_all(folders, mnist, cifar, omniglot, monkeypatch):
    put(folders[0] / "mnist", mnist)
    put(folders[0] / "cifar-10", cifar[0])
    put(folders[0] / "omniglot", omniglot[0])
    monkeypatch.delitem(DATASETS, "fashion-mnist")
    shown = run("fetch", "--all")
    assert shown.exit_code == 0
    assert [line.split(":")[0] for line in shown.output.splitlines()] == ["digits", "mnist", "cifar-10", "omniglot"]


def test_data_errors_are_one_line(folders, mnist, nobody, monkeypatch):
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], mirrors=(f"https://{nobody}/",)))
    monkeypatch.setenv("no_proxy", "*")
    put(folders[0] / "cifar-10", {DATASETS["cifar-10"].files[0].name: b"bad"})
    for arguments, reason in (
        (["fetch"], "--all"),
        (["fetch", "minst"], "did you mean 'mnist'"),
        (["verify", "minst"], "did you mean 'mnist'"),
        (["fetch", "mnist"], "by hand"),
        (["fetch", "cifar-10"], "expected sha256:"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert len(result.stderr.splitlines()) == 1
        assert result.stderr.startswith("Error: ")
        assert reason in result.stderr


# The real files


@pytest.fixture
def real(tmp_path, monkeypatch):
    """A function that skips unless the files of this data set are in $ROOKERY_DATA."""
    given = os.environ.get("ROOKERY_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def need(name):
        if not given:
            pytest.skip("ROOKERY_DATA is not set")
        if not all((Path(given) / name / file.name).is_file() for file in DATASETS[name].files):
            pytest.skip(f"ROOKERY_DATA has no {name}")

    return need


COUNTS = {
    "mnist": (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "fashion-mnist": ([6000] * 10, [1000] * 10),
    "cifar-10": ([5000] * 10, [1000] * 10),
}


@pytest.mark.parametrize("name", COUNTS)
def test_real_images(real, name):
    real(name)
    data, source = load(name), DATASETS[name]
    assert data.train_inputs.shape == (source.train, *source.shape)
    assert data.test_inputs.shape == (source.test, *source.shape)
    assert np.bincount(data.train_labels).tolist() == COUNTS[name][0]
    assert np.bincount(data.test_labels).tolist() == COUNTS[name][1]
    axes = tuple(range(3))  # all but the colours
    rounding = 255 * 5e-5 if name == "mnist" else 1e-6
    np.testing.assert_allclose(data.mean, data.train_inputs.mean(axes), rtol=0, atol=rounding)
    np.testing.assert_allclose(data.deviation, data.train_inputs.std(axes), rtol=0, atol=rounding)


def test_real_omniglot(real):
    real("omniglot")
    load_omniglot.cache_clear()
    data = load_omniglot()
    assert data.images.shape == (DATASETS["omniglot"].classes, 20, 28, 28)
    assert len(data.alphabets) == len(set(data.alphabets)) == 50
    counts = np.bincount(data.alphabet)
    assert counts[:30].sum() == 964
    assert counts[30:].sum() == 659
    assert np.all(np.diff(data.alphabet) >= 0)
    assert counts[data.alphabets.index("Greek")] == 24
    assert counts[data.alphabets.index("Tibetan")] == 42
    path = Path(os.environ["ROOKERY_DATA"]) / "omniglot" / "images_evaluation.zip"
    with zipfile.ZipFile(path) as archive:
        name = "images_evaluation/Tibetan/character07/1562_20.png"
        paper = matplotlib.image.imread(io.BytesIO(archive.read(name)))
    ink = (paper == 0).astype(np.uint8)[None]
    seventh = np.flatnonzero(data.alphabet == data.alphabets.index("Tibetan"))[6]
    np.testing.assert_array_equal(data.images[seventh, 19], area_average(ink, 28)[0])
