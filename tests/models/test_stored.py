"""Networks as files: what is loaded is what was saved, and anything else is told in a line."""

import json
import struct

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save

from rookery.models.choice import Headed, make_model
from rookery.models.layers import Dense
from rookery.models.stored import load_model, save_model

KEY = jax.random.key(3)
ABOUT = {"model": "mlp:5", "shape": [4], "outputs": 3}
FILE = """
import equinox as eqx
import jax

class Shuffled(eqx.Module):
    order: jax.Array
    layer: eqx.nn.Linear

    def __call__(self, example):
        return self.layer(example[self.order])

def make(shape, outputs, key):
    return Shuffled(jax.random.permutation(key, shape[0]), eqx.nn.Linear(shape[0], outputs, key=key))
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "model.safetensors"


@pytest.fixture
def stored(path):
    save_model(path, make_model("mlp:5", (4,), 3, KEY), ABOUT)
    return path


@pytest.fixture
def own(tmp_path, path):
    """(its file, a stored model from it)."""
    file = tmp_path / "nets.py"
    file.write_text(FILE)
    spec = f"{file}:make"
    save_model(path, make_model(spec, (4,), 3, KEY), {**ABOUT, "model": spec})
    return file, path


def said(function, *arguments, **named):
    with pytest.raises(ValueError) as caught:
        function(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def files(folder):
    return sorted(each.name for each in folder.glob("*"))


@pytest.mark.parametrize(
    ("spec", "shape", "hidden"), [("mlp:5", (4,), None), ("linear", (2, 2), None), ("mlp:5", (4,), 6)]
)
def test_what_is_loaded_is_what_was_saved(path, spec, shape, hidden):
    model = make_model(spec, shape, hidden or 3, KEY)
    if hidden:
        model = Headed(model, Dense(hidden, 3, KEY))
    model = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), model)
    about = {"model": spec, "shape": list(shape), "outputs": 3, "hidden": hidden, "classes": ["a", "b", "c"]}
    save_model(path, model, about)
    first = path.read_bytes()
    loaded, told = load_model(path)
    assert eqx.tree_equal(loaded, model)
    assert told == about
    save_model(path, model, about)
    assert path.read_bytes() == first
    assert files(path.parent) == ["model.safetensors"]


def test_a_file_of_ones_own_is_copied_and_the_copy_is_run(own):
    file, path = own
    model = make_model(f"{file}:make", (4,), 3, KEY)
    file.unlink()
    loaded, about = load_model(path)
    batch = jnp.arange(8.0).reshape(2, 4)
    np.testing.assert_array_equal(loaded(batch), model(batch))  # the order too, which was drawn and is not learned
    assert about["model"] == f"{file}:make"
    assert files(path.parent) == ["model.py", "model.safetensors"]


def test_the_copy_is_that_of_the_file_that_was_run(own):
    file, path = own
    model = make_model(f"{file}:make", (4,), 3, KEY)
    file.write_text("raise SystemExit")
    save_model(path.with_name("later.safetensors"), model, {**ABOUT, "model": f"{file}:make"})
    assert path.with_name("later.py").read_text() == FILE


def test_a_changed_copy_is_not_run(own, tmp_path):
    file, path = own
    ran = tmp_path / "ran"
    (path.parent / "model.py").write_text(FILE + f"open({str(ran)!r}, 'w')\n")
    line = said(load_model, path)
    assert line == f"{path.parent / 'model.py'} is not the file that the model in {path} was made with: it is not run"
    assert not ran.exists()
    before = path.read_bytes()
    line = said(save_model, path, make_model(str(file), (4,), 3, KEY), {**ABOUT, "model": str(file)})
    assert line.startswith(f"{path.parent / 'model.py'} is another file than that of model")
    assert path.read_bytes() == before
    (path.parent / "model.py").unlink()
    assert said(load_model, path).startswith(f"there is no file {path.parent / 'model.py'}")


def test_a_model_of_pythons_things_is_given_again(path):
    made = eqx.nn.Linear(4, 3, key=KEY)
    save_model(path, make_model(made, (4,), 3, KEY), {"model": None, "classes": 3})
    assert said(load_model, path) == (
        f"{path}: its model cannot be made: it was made of Python's things: load_model(path, model=...) needs it again"
    )
    other = make_model(eqx.nn.Linear(4, 3, key=jax.random.key(0)), (4,), 3, KEY)
    loaded, about = load_model(path, model=other)
    assert eqx.tree_equal(loaded.tree, made)
    assert about == {"model": None, "classes": 3}
    wrong = make_model("linear", (4,), 3, KEY)
    assert said(load_model, path, model=wrong) == (
        f"{path} has other arrays than the model: weight is floats [3, 4], the model has floats [4, 3]"
    )


@pytest.mark.parametrize(
    ("about", "line"),
    [
        (
            {**ABOUT, "model": "mlp:6"},
            "about does not describe the model: layers.0.weight is floats [4, 5], the model has",
        ),
        (
            {**ABOUT, "model": "linear"},
            "about does not describe the model: weight is nothing, the model has floats [4, 3]",
        ),
        ({**ABOUT, "model": 3}, "model must be text or None, got 3"),
        ({"model": "mlp:5", "outputs": 3}, "shape must be a list of whole numbers, got None"),
        ({**ABOUT, "outputs": 0}, "outputs must be a whole number of at least 1, got 0"),
        ({**ABOUT, "hidden": "6"}, "hidden must be a whole number of at least 1, got '6'"),
        ({**ABOUT, "note": float("nan")}, "about must be what JSON can say"),
        ({**ABOUT, "note": {1, 2}}, "about must be what JSON can say"),
        ({**ABOUT, "rookery": 2}, "about must not have 'rookery', which is written for you"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(path, about, line):
    assert said(save_model, path, make_model("mlp:5", (4,), 3, KEY), about).startswith(line)
    assert not path.parent.exists()


def test_damaged_and_foreign_files(stored, tmp_path):
    body = stored.read_bytes()
    other = tmp_path / "other.safetensors"
    assert said(load_model, other) == f"there is no file {other}"
    for damaged in (b"", body[:-3], body[:40], b"\xff" * 100, body.replace(b'{\\"model', b'[\\"model')):
        assert damaged != body
        other.write_bytes(damaged)
        assert said(load_model, other).startswith(f"{other} is damaged, or no file of a model: ")
    other.write_bytes(save({"a": np.ones(2)}))
    assert said(load_model, other) == f"{other} was not written by save_model: its metadata have no 'rookery'"
    other.write_bytes(save({"a": np.ones(2)}, {"rookery": '{"rookery": "7"}'}))
    assert said(load_model, other) == f"{other} has the form '7', this Rookery knows '1'"


def test_no_numbers_are_made_only_to_be_replaced(stored, monkeypatch):
    """A file may ask for a network of any size."""
    traced = []

    def spy(spec, shape, outputs, key, trained):
        traced.append(isinstance(key, jax.core.Tracer) and not trained)
        return make_model(spec, shape, outputs, key, trained)

    monkeypatch.setattr("rookery.models.stored.make_model", spy)
    load_model(stored)
    assert traced == [True]


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model": ["mlp:5"]}, "model must be text or None"),
        ({"shape": [4.5]}, "shape must be a list of whole numbers"),
        ({"shape": [10**12]}, "other arrays than the model"),
        ({"model": "mlp:x"}, "the widths must be whole numbers"),
        ({"model": "os:system"}, "does not say which file os:system is from, and nothing else is run"),
        ({"model": "os:system", "source": {"file": 1}}, "does not say which file os:system is from"),
    ],
)
def test_a_file_that_lies(stored, changes, line):
    body = stored.read_bytes()
    (length,) = struct.unpack("<Q", body[:8])
    header = json.loads(body[8 : 8 + length])
    about = json.loads(header["__metadata__"]["rookery"])
    header["__metadata__"]["rookery"] = json.dumps(about | changes)
    new = json.dumps(header).encode()
    stored.write_bytes(struct.pack("<Q", len(new)) + new + body[8 + length :])
    assert line in said(load_model, stored)
