"""What differs by device: the branch of accelerators, forced on a CPU, computes the same; and nobody else asks.

That an accelerator runs these programs, and how fast, cannot be seen here.
"""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import devices
from rookery.engines import diagnose
from rookery.experiment.environment import environment
from rookery.models.layers import Conv, ConvFeatures
from rookery.models.networks import CifarCNN, ConvNet, FashionCNN, LeNet5
from tests.helpers.marks import slow

ROOT = Path(__file__).parent.parent
CLIENTS, EXAMPLES = 3, 2


# --- the questions ----------------------------------------------------------------------------------------------------


def test_seconds_are_those_of_the_cores_or_of_an_accelerator_the_wall_s():
    def passed():
        before = devices.seconds()
        time.sleep(0.3)
        return devices.seconds() - before

    assert passed() < 0.2
    with devices.pretend("gpu"):
        assert passed() >= 0.3


@pytest.mark.parametrize(
    ("told", "kind"),
    [("cpu", "cpu"), ("gpu", "gpu"), ("tpu", "tpu"), ("cuda", "gpu"), ("rocm", "gpu"), ("METAL", "gpu")],
)
def test_the_kind_is_what_jax_tells(monkeypatch, told, kind):
    monkeypatch.setattr(jax, "default_backend", lambda: told)
    assert devices.kind() == kind


def test_on_a_cpu():
    with devices.pretend("cpu"):
        assert devices.threads() == devices.usable_cores() >= 1
        assert not devices.own_convolution()
        assert set(devices.quick_compilation()) == {
            "xla_backend_optimization_level",
            "xla_llvm_disable_expensive_passes",
        }


@pytest.mark.parametrize("kind", ["gpu", "tpu"])
def test_on_an_accelerator(kind):
    with devices.pretend(kind):
        assert devices.kind() == kind
        assert devices.threads() == 1
        assert devices.own_convolution()
        assert devices.quick_compilation() == {}


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {5, 2, 3}, raising=False)
    assert (devices.cores(), devices.usable_cores()) == ([2, 3, 5], 3)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert (devices.cores(), devices.usable_cores()) == ([], 7)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert devices.usable_cores() == 1


def test_pretending_reaches_threads_and_ends_whatever_happens():
    before, heard = devices.kind(), []

    def fails():
        with devices.pretend("tpu"):
            thread = threading.Thread(target=lambda: heard.append(devices.kind()))
            thread.start()
            thread.join()
            with devices.pretend("gpu"):
                heard.append(devices.kind())
            heard.append(devices.kind())
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fails()
    assert heard == ["tpu", "gpu", "tpu"]
    assert devices.kind() == before


def test_what_was_compiled_for_another_device_is_dropped():
    traced = jax.jit(lambda: jnp.float32(devices.own_convolution()))
    with devices.pretend("cpu"):
        assert traced() == 0
    with devices.pretend("gpu"):
        assert traced() == 1
    with devices.pretend("cpu"):
        assert traced() == 0


def test_processes_that_share_a_device_leave_each_other_memory(monkeypatch):
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    monkeypatch.setenv(name, "true")
    devices.share()
    assert os.environ[name] == "true", "who runs the process knows better"
    monkeypatch.delenv(name)
    devices.share()
    assert os.environ[name] == "false"


# --- convolutions -----------------------------------------------------------------------------------------------------


def both(compute, *args):
    """What a function gives on a CPU and on a GPU, each as one program."""
    found = []
    for kind in ("cpu", "gpu"):
        with devices.pretend(kind):
            found.append(jax.jit(compute)(*args))
    return found


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * max(1.0, float(np.abs(a).max())))


def draws(*shape):
    return jnp.asarray(np.random.default_rng(1).standard_normal(shape))


def like(tree, seed):
    """A tree of random numbers."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype), tree)


def derivatives(network, images, direction, target):
    """Outputs, gradient, and the derivative of the gradient in a direction, by the network and by the images."""

    def loss(network, images):
        return jnp.sum(jnp.tanh(network(images)) * target)  # curved also where the network is linear

    slope = jax.grad(loss, argnums=(0, 1))
    return network(images), *jax.jvp(slope, (network, images), direction)


def assert_same_derivatives(make, shape, blank=0):
    """Of one client, and under ``vmap`` over clients, each with a network of its own; some rows may be blank."""
    keys = jax.random.split(jax.random.key(0), CLIENTS)
    networks = jax.vmap(make)(keys)
    arrays, rest = eqx.partition(networks, eqx.is_array)
    images = draws(CLIENTS, EXAMPLES, *shape).at[:, 0, :blank].set(0)
    outputs = eqx.filter_eval_shape(lambda net: jax.vmap(lambda n, a: n(a))(net, images), networks)
    target, direction = like(outputs, 2), (like(arrays, 3), like(images, 4))

    def one(arrays, images, direction, target):
        whole = eqx.combine(arrays, rest)
        return derivatives(whole, images, (eqx.combine(direction[0], rest), direction[1]), target)

    def first(tree):
        return jax.tree.map(lambda leaf: leaf[0], tree)

    def alone_and_together(*args):
        return one(*first(args)), jax.vmap(one)(*args)

    assert_same(*both(alone_and_together, arrays, images, direction, target))


@pytest.mark.parametrize(
    ("shape", "size", "padding"),
    [slow((8, 8, 1), 3, 1), ((7, 9, 3), 3, 0), ((9, 8, 1), 5, 2), slow((8, 7, 2), 5, 0), slow((28, 28, 1), 3, 0)],
)
def test_convolutions_of_both_kinds_are_the_same(shape, size, padding):
    assert_same_derivatives(lambda key: Conv(shape[-1], 4, key, size=size, padding=padding), shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda key: LeNet5((8, 8), 3, key), (8, 8, 1)),
        slow(lambda key: LeNet5((28, 28), 3, key), (28, 28, 1)),
        slow(lambda key: FashionCNN((8, 8), 3, key), (8, 8, 1)),
        slow(lambda key: FashionCNN((28, 28), 3, key), (28, 28, 1)),
        slow(lambda key: CifarCNN((8, 8, 3), 3, key), (8, 8, 3)),
        slow(lambda key: ConvFeatures(1, 4, 3, key), (7, 7, 1)),
    ],
)
def test_networks_of_both_kinds_are_the_same(make, shape):
    assert_same_derivatives(make, shape)


@pytest.mark.slow
def test_blank_pixels():
    """As most of a digit: all four values of a maximum are equal, and both kinds must send the gradient to the same one.

    In a second layer they are equal but for rounding, and no kind of device breaks such a tie in a way one could tell.
    """
    options = {"channels": (3,), "hidden": (), "size": 3, "paddings": (1,), "activation": jnp.tanh}
    assert_same_derivatives(lambda key: ConvNet((8, 8), 2, key, **options), (8, 8, 1), blank=5)


@pytest.mark.parametrize("images", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("weights", [np.float32, np.float64])
def test_images_of_another_type_than_the_weights(images, weights):
    """They are promoted as by a product of matrices. Whole numbers, which every type has exactly."""
    rng = np.random.default_rng(0)
    conv = jax.tree.map(
        lambda leaf: jnp.asarray(rng.integers(-9, 9, leaf.shape), weights), Conv(1, 2, jax.random.key(0))
    )
    pixels = jnp.asarray(rng.integers(0, 256, (2, 4, 4, 1)), images)
    one, other = both(lambda: conv(pixels))
    np.testing.assert_array_equal(one, other)
    assert one.dtype == other.dtype


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: Conv(1, 2, jax.random.key(0), padding=1), (8, 8, 1)),
        (lambda: LeNet5((8, 8), 3, jax.random.key(0)), (8, 8, 1)),
        (lambda: ConvFeatures(1, 2, 1, jax.random.key(0)), (8, 8, 1)),
    ],
)
def test_each_device_gets_its_own_program(make, shape):
    network, images = make(), draws(EXAMPLES, *shape)
    texts = {}
    for kind in ("cpu", "gpu", "tpu"):
        with devices.pretend(kind):
            texts[kind] = jax.jit(network.__call__).lower(images).as_text()
    convolutions = {kind: text.count("stablehlo.convolution") for kind, text in texts.items()}
    layers = len([each for each in jax.tree.leaves(network, is_leaf=is_conv) if is_conv(each)])
    assert convolutions == {"cpu": 0, "gpu": layers, "tpu": layers}
    examples_last = "tensor<1x8x8x2xf64>"
    assert examples_last not in texts["gpu"], "nothing is turned around for a library that chooses its layout itself"


def is_conv(node):
    return isinstance(node, Conv)


# --- elsewhere --------------------------------------------------------------------------------------------------------


def test_programs_that_run_a_few_times_have_the_options_of_their_device(monkeypatch):
    asked = []

    def recorded(function, compiler_options):
        asked.append(compiler_options)
        return function

    monkeypatch.setattr(diagnose.eqx, "filter_jit", recorded)
    double = diagnose._compiled(lambda a: 2 * a)
    assert not asked, "before the first call nobody knows the device"
    for kind in ("cpu", "gpu", "cpu"):
        with devices.pretend(kind):
            assert double(3) == 6
    assert [bool(options) for options in asked] == [True, False], "once for each"


def test_a_run_tells_its_device():
    assert environment()["device"] == devices.name() == jax.local_devices()[0].device_kind


IMPORT_ALL = """
import importlib, pkgutil, rookery
for module in pkgutil.walk_packages(rookery.__path__, "rookery."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print("imported")
rookery.devices.kind()
"""


@pytest.mark.slow
def test_importing_does_not_start_the_device():
    """On a platform that does not exist the first question fails, and importing does not."""
    elsewhere = {**os.environ, "JAX_PLATFORMS": "nonesuch"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], env=elsewhere, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "imported\n", done.stderr
    assert "Unable to initialize backend 'nonesuch'" in done.stderr


ASKED = r"cpu_count|sched_getaffinity|default_backend|device_kind|platform_dependent|\.platform\s*[!=]=|\bxla_\w+"


def test_nobody_else_asks_for_the_device():
    found = []
    for path in sorted((ROOT / "rookery").rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if path.name != "devices.py" and re.search(ASKED, line):
                found.append(f"{path.relative_to(ROOT)}:{number} {line.strip()}")
    assert not found, "what differs by device belongs into rookery/devices.py:\n" + "\n".join(found)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="the system has no such threads")
def test_other_threads_give_way_to_this_one():
    done, ready = threading.Event(), threading.Event()
    told = []

    def wait():
        told.append(threading.get_native_id())
        ready.set()
        done.wait(60)

    other = threading.Thread(target=wait)
    other.start()
    try:
        ready.wait(60)
        with devices.pretend("gpu"):
            devices.let_compute()
        assert os.sched_getscheduler(told[0]) == os.SCHED_OTHER
        devices.let_compute()
        assert os.sched_getscheduler(told[0]) == os.SCHED_BATCH
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    finally:
        done.set()
        other.join()
