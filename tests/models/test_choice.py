"""Models of a user's choice: by name, from files, from Python; what is wrong with one is told in a line."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.models.choice import Headed, make_model, model_name
from rookery.models.layers import MLP, Dense
from rookery.models.networks import CifarCNN, FashionCNN, LeNet5
from rookery.problem.layout import Layout, same_structure

KEY, OTHER = jax.random.key(0), jax.random.key(1)
BATCH = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4)))


def equal(one, other):
    return bool(eqx.tree_equal(one, other))


def said(spec, shape=(4,), outputs=3):
    """The one line that refuses a model."""
    with pytest.raises(ValueError) as caught:
        make_model(spec, shape, outputs, KEY)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- by name ----------------------------------------------------------------------------------------------------------


def test_names_give_the_networks_of_the_package():
    assert equal(make_model("mlp:32", (64,), 10, KEY), MLP((64, 32, 10), KEY))
    assert equal(make_model("mlp", (4,), 3, KEY), MLP((4, 64, 3), KEY))
    assert equal(make_model("mlp: 5, 6", (4,), 3, KEY), MLP((4, 5, 6, 3), KEY))
    assert equal(make_model("linear", (4,), 3, KEY), Dense(4, 3, KEY))


@pytest.mark.parametrize(
    ("spec", "shape", "network"), [("cnn", (8, 8), FashionCNN), ("cnn", (8, 8, 3), CifarCNN), ("lenet", (8, 8), LeNet5)]
)
def test_names_of_networks_for_images(spec, shape, network):
    found, expected = (
        eqx.filter_eval_shape(make, KEY)  # numbers take seconds to compile
        for make in (lambda key: make_model(spec, shape, 3, key), lambda key: network(shape, 3, key))
    )
    assert type(found) is network
    assert equal(found, expected)


def test_networks_for_vectors_flatten_images():
    images = BATCH.reshape(5, 2, 2, 1)
    for spec in ("linear", "mlp:6"):
        found = make_model(spec, (2, 2), 3, KEY)(images)
        np.testing.assert_array_equal(found, make_model(spec, (4,), 3, KEY)(BATCH))


def test_a_head_on_features():
    features, head = Dense(4, 6, KEY), Dense(6, 3, OTHER)
    expected = np.maximum(BATCH @ features.weight + features.bias, 0) @ head.weight + head.bias
    np.testing.assert_allclose(Headed(features, head)(BATCH), expected)


def test_names_for_tables():
    assert model_name("mlp") == "mlp:64"
    assert model_name("mlp: 3, 4") == "mlp:3,4"
    assert model_name("cnn") == "cnn"
    assert model_name("some/my_models.py:net") == "my_models:net"
    assert model_name("package.my_models") == "my_models"
    assert model_name(eqx.nn.Linear(4, 3, key=KEY)) == "Linear"
    assert model_name(one_example) == "one_example"
    assert model_name((len, len)) == "(init, apply)"


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (
            "mpl:64",
            "model: there is no 'mpl:64'; did you mean 'mlp'? There are: linear, mlp, cnn, lenet, resnet18, or FILE.py:make",
        ),
        ("mlp:", "model mlp:: the widths must be whole numbers of at least 1, such as mlp:64,64"),
        ("mlp:64,0", "model mlp:64,0: the widths must be whole numbers of at least 1, such as mlp:64,64"),
        ("linear:3", "model linear:3: linear takes nothing after its name"),
        ("cnn", "model cnn is for images, and an example here has the shape (4,): try mlp:64,64"),
        ("gone.py:make", "model gone.py:make: there is no file gone.py"),
        ("gone.models:make", "model gone.models:make: there is no module gone.models"),
        ("rookery.names", "model rookery.names: names.py does not define make"),
    ],
)
def test_a_wrong_name(spec, line):
    assert said(spec) == line


def test_a_wrong_shape_or_number_of_outputs():
    assert said("linear", (4, 0)).startswith("shape must be (features,), (height, width) or")
    assert said("linear", outputs=0) == "outputs must be a whole number of at least 1, got 0"


# --- from Python ------------------------------------------------------------------------------------------------------


def one_example(shape, outputs, key):
    return eqx.nn.MLP(shape[0], outputs, 8, 1, activation=lambda z: jnp.tanh(z), key=key)


class Batchwise(eqx.Module):
    weight: jax.Array
    rate: float = 0.5
    """No array, and so no parameter."""

    def __call__(self, batch):
        assert batch.ndim == 2, "a batch"
        return self.rate * batch @ self.weight


def a_pair(outputs):
    def init(key, batch):
        return {"w": jax.random.normal(key, (batch.shape[1], outputs)), "order": np.arange(4)[::-1]}

    def apply(params, batch):
        return batch[:, params["order"]] @ params["w"]

    return init, apply


def test_an_equinox_module_for_one_example_is_mapped_over_the_batch():
    own = one_example((4,), 3, KEY)
    model = make_model(own, (4,), 3, OTHER)
    np.testing.assert_allclose(model(BATCH), jax.vmap(own)(BATCH))
    assert equal(model.tree, own)
    square = eqx.nn.Linear(2, 2, key=KEY)  # a batch of two would go through it as well, as something else
    np.testing.assert_allclose(make_model(square, (2,), 2, KEY)(BATCH[:, :2]), jax.vmap(square)(BATCH[:, :2]))


def test_an_equinox_module_for_batches_stays_as_it_is_and_only_its_arrays_move():
    dense = Dense(4, 3, KEY)
    assert make_model(dense, (4,), 3, KEY) is dense
    model = make_model(Batchwise(jnp.ones((4, 3))), (4,), 3, KEY)
    assert Layout.of(model, "y").size == 12
    np.testing.assert_allclose(model(BATCH), 0.5 * BATCH @ jnp.ones((4, 3)))


def test_a_pair():
    model = make_model(a_pair, (4,), 3, KEY)
    (weight,) = jax.tree.leaves(model)  # integers are no parameters
    np.testing.assert_array_equal(weight, jax.random.normal(KEY, (4, 3)))
    np.testing.assert_allclose(model(BATCH), BATCH[:, ::-1] @ weight)
    assert equal(make_model(a_pair(3), (4,), 3, KEY), model)


@pytest.mark.parametrize("spec", [one_example, a_pair])
def test_the_same_choice_is_compiled_once(spec):
    """Also where functions are made anew in each call; what they captured counts."""
    traces = []

    @jax.jit
    def call(model, batch):
        traces.append(1)
        return model(batch)

    one, other = make_model(spec, (4,), 3, KEY), make_model(spec, (4,), 3, OTHER)
    assert same_structure(one, other)
    assert not np.allclose(call(one, BATCH), call(other, BATCH))
    assert len(traces) == 1


def test_functions_that_captured_something_else_are_not_the_same():
    def scaled(factor):
        return (lambda key, batch: jnp.ones((4, 3))), (lambda params, batch: factor * batch @ params)

    one, other, third = (make_model(scaled(factor), (4,), 3, KEY) for factor in (1.0, 2.0, 1.0))
    assert same_structure(one, third)
    assert not same_structure(one, other)


def test_images_come_with_channels():
    told = []

    def make(shape, outputs):
        told.append(shape)
        return (lambda key, batch: jnp.ones((4, 3))), (lambda params, batch: batch.reshape(len(batch), -1) @ params)

    make_model(make, (2, 2), 3, KEY)
    assert told == [(2, 2, 1)]


def fixed_size(key, batch):
    return jnp.ones((4, 3))


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (Dense(4, 5, KEY), "model Dense: gives float64(2, 5), wanted floats (2, 3) for a batch (2, 4)"),
        (eqx.nn.Linear(4, 5, key=KEY), "model Linear: gives float64(5,), wanted floats (3,) for one example (4,)"),
        (eqx.nn.Linear(7, 3, key=KEY), "model Linear: fails with TypeError: dot_general requires"),
        (eqx.nn.Identity(), "model Identity: has no array of floats, there is nothing to learn"),
        (
            (fixed_size, lambda params, batch: jnp.argmax(batch @ params, -1)),
            "model (init, apply): gives int64(2,), wanted floats (2, 3) for a batch (2, 4)",
        ),
        (
            (fixed_size, lambda params, batch: (batch @ params, None)),
            "model (init, apply): gives a tuple, wanted one array of floats (2, 3) for a batch (2, 4)",
        ),
        (
            (fixed_size, lambda params, batch: (batch @ params)[:2]),
            "model (init, apply): gives float64(2, 3), wanted floats (3, 3) for a batch (3, 4)",
        ),
        (
            (fixed_size, fixed_size, fixed_size),
            "model (init, apply): must be an Equinox, Flax or PyTorch module or a pair",
        ),
        (lambda width: None, "model <lambda>: may ask for shape, outputs, key, and asks for width"),
        (
            lambda: "mlp",
            "model <lambda>: must be an Equinox, Flax or PyTorch module or a pair (init, apply) of functions",
        ),
        (lambda: [][1], "model <lambda>: making it failed: IndexError: list index out of range"),
        (3, "model int: must be an Equinox, Flax or PyTorch module or a pair"),
    ],
)
def test_what_is_wrong_with_a_model_is_told_in_a_line(spec, line):
    assert said(spec).startswith(line)


# --- from a file ------------------------------------------------------------------------------------------------------


FILE = """
import equinox as eqx

class Net(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, example):
        return self.layer(example)

def make(outputs, key, shape):
    return Net(eqx.nn.Linear(shape[0], outputs, key=key))

def broken(shape):
    return shape[7]
"""


def test_a_file_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "nets_of_a_test.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    expected = jax.vmap(eqx.nn.Linear(4, 3, key=KEY))(BATCH)
    for spec in (
        "nets_of_a_test.py",
        "nets_of_a_test.py:make",
        "nets_of_a_test:make",
        str(tmp_path / "nets_of_a_test.py"),
    ):
        np.testing.assert_allclose(make_model(spec, (4,), 3, KEY)(BATCH), expected)
    one, other = (make_model("nets_of_a_test.py", (4,), 3, key) for key in (KEY, OTHER))
    assert same_structure(one, other)
    assert said("nets_of_a_test.py:net") == "model nets_of_a_test.py:net: nets_of_a_test.py does not define net"
    assert said("nets_of_a_test.py:broken") == (
        "model nets_of_a_test.py:broken, line 14: making it failed: IndexError: tuple index out of range"
    )
    (tmp_path / "nets_of_a_test.py").write_text("import equinox as\n")
    assert said("nets_of_a_test.py").startswith("model nets_of_a_test.py, line 1: importing it failed: SyntaxError: ")


# --- Flax, Haiku, PyTorch ---------------------------------------------------------------------------------------------


def test_flax():
    nn = pytest.importorskip("flax.linen")

    def make(outputs):
        return nn.Sequential([nn.Dense(6), lambda z: nn.relu(z), nn.LayerNorm(), nn.Dense(outputs)])

    model = make_model(make, (4,), 3, KEY)
    network = make(3)
    expected = network.apply(network.init(KEY, BATCH), BATCH)
    np.testing.assert_allclose(model(BATCH), expected)
    np.testing.assert_allclose(make_model((network.init, network.apply), (4,), 3, KEY)(BATCH), expected)
    assert same_structure(model, make_model(make, (4,), 3, OTHER))
    line = "keeps state besides its parameters (batch_stats): a batch's statistics would tie examples together; use "
    normed = nn.Sequential([nn.Dense(3), nn.BatchNorm(use_running_average=True)])
    for spec in (normed, (normed.init, normed.apply)):
        assert line in said(spec)


def test_flax_nnx():
    nnx = pytest.importorskip("flax.nnx")

    def make(key):
        return nnx.Linear(4, 3, rngs=nnx.Rngs(key))

    model = make_model(make, (4,), 3, KEY)
    np.testing.assert_allclose(model(BATCH), make(KEY)(BATCH))
    assert same_structure(model, make_model(make, (4,), 3, OTHER))
    assert "(BatchStat)" in said(nnx.BatchNorm(4, rngs=nnx.Rngs(0)))


def test_haiku():
    hk = pytest.importorskip("haiku")

    def forward(batch):
        return hk.nets.MLP([6, 3])(batch)

    network = hk.transform(forward)
    expected = network.apply(network.init(KEY, BATCH), None, BATCH)
    for spec in (network, hk.without_apply_rng(network), lambda: hk.transform(lambda batch: forward(batch))):
        model = make_model(spec, (4,), 3, KEY)
        np.testing.assert_allclose(model(BATCH), expected)
        assert same_structure(model, make_model(spec, (4,), 3, OTHER))
    assert "keeps state besides its parameters" in said(hk.transform_with_state(forward))


def test_pytorch():
    """Outputs, gradients and Hessian-vector products, for several clients at once; weights by key; what cannot be."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchax", exc_type=(ImportError, AttributeError))

    def make(shape, outputs):
        return torch.nn.Sequential(torch.nn.Linear(shape[0], 6), torch.nn.Tanh(), torch.nn.Linear(6, outputs))

    before = torch.random.get_rng_state()
    model, same, other = (make_model(make, (4,), 3, key) for key in (KEY, KEY, OTHER))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert equal(model, same)
    assert not equal(model, other)
    assert same_structure(model, other)

    def rebuilt(params, batch):
        hidden = jnp.tanh(batch @ params["0.weight"].T + params["0.bias"])
        return hidden @ params["2.weight"].T + params["2.bias"]

    def product(apply, params, batch):
        def loss(params):
            return jnp.mean(apply(params, batch) ** 3)

        return jax.jvp(jax.grad(loss), (params,), (params,))

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), model.params, other.params)
    batches = jnp.stack([BATCH, BATCH[::-1]]).astype(jnp.float32)
    found, expected = (jax.vmap(lambda p, b, f=f: product(f, p, b))(stacked, batches) for f in (model.apply, rebuilt))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
    plain = make((4,), 3)
    torch_says = plain(torch.tensor(np.asarray(batches[0]))).detach()
    np.testing.assert_allclose(make_model(plain, (4,), 3, KEY)(batches[0]), torch_says, atol=1e-6)
    assert "0 is BatchNorm1d" in said(torch.nn.Sequential(torch.nn.BatchNorm1d(4)))
    assert "1 is Dropout" in said(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout()))
