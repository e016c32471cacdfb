"""Problems of one's own: what a module can be, its options, and its runs in folders."""

import shutil
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

import rookery as rk
from rookery.experiment.captured import as_lanes, same
from rookery.experiment.folder import read_config, read_run
from rookery.experiment.running import resume_run, start_run
from rookery.experiment.settings import resolve, settings_from
from rookery.experiment.sites import open_site
from rookery.experiment.source import open_source
from rookery.experiment.sweep import sweep
from rookery.fingerprint import fingerprint
from tests.helpers.own_problem import MAKE, PLAIN, RIDGE


class Stop(Exception):
    pass


def stop_after(round):
    def watch(state, history):
        if state.round >= round:
            raise Stop

    return watch


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def made(here):
    path = here / "ridge.py"
    path.write_text(MAKE)
    return path


# --- what a module can be ---------------------------------------------------------------------------------------------


def test_a_function_with_options(made):
    source = open_source("ridge.py")
    assert (source.title, source.summary) == ("ridge", "A ridge regression.")
    assert list(source.options) == ["clients", "size", "scale", "levels", "word", "nothing"]
    settings = settings_from("ridge.py", {}, ["size=5", "scale=2", "levels=[3]", "eta_x=0.5"])
    assert (settings.task, settings.dataset, settings.clients, settings.rounds) == ("ridge.py", "own", 3, 6)
    assert (settings.algorithm, settings.rates["eta_x"], settings.rates["eta_y"]) == ("FedBiO", 0.5, 0.1)
    assert (settings.options["scale"], settings.options["levels"]) == (2.0, [3])
    (task,) = settings.make_tasks()
    assert task.clients.lower.max_size == 5
    assert (task.metric, task.higher_is_better) == (
        "loss",
        False,
    )  # the first, though "a" comes before it in the alphabet


def test_names_at_top_level_and_a_loader(here):
    (here / "plain.py").write_text(PLAIN)
    settings = resolve({"task": "plain.py", "algorithm": "FedBiO"})
    assert (settings.rounds, settings.local_steps, settings.batch_size, settings.participants) == (7, 2, 4, 2)
    (task,) = settings.make_tasks()
    assert (task.metric, task.higher_is_better, task.evaluate, task.clients.n) == ("upper_loss", False, None, 3)
    for client in range(3):
        one = open_site("plain.py").load([client]).lower
        np.testing.assert_array_equal(one.data["a"], task.clients.lower.take(client, np.arange(8))["a"])


@pytest.mark.parametrize("name", ["pack.age", "pack.age:small", "age_file.py:table", "age_file.py:small"])
def test_packages_and_names_inside(here, monkeypatch, name):
    text = MAKE + "\ndef small(size=4):\n    return make(size=size)\n\ntable = make(size=4)\n"
    (here / "pack").mkdir()
    for path in (here / "pack" / "__init__.py", here / "pack" / "age.py", here / "age_file.py"):
        path.write_text(text)
    for module in ("pack", "pack.age"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    source = open_source(name)
    stem = name.partition(":")[0].removesuffix(".py").rpartition(".")[2]
    assert source.title == (stem if ":" not in name else f"{stem}:{name.rpartition(':')[2]}")
    (task,) = resolve({"task": name}).make_tasks()
    assert task.clients.lower.max_size == (8 if name == "pack.age" else 4)


def test_client_weighting_needs_no_x0(here):
    text = (
        RIDGE
        + """
def loss(w, batch):
    return upper(None, w, batch)

problem, y0, num_clients = rk.ClientWeighting(loss), np.zeros(2, np.float32), 2
load_client = lambda partition, n: rk.Clients([draw(np.random.default_rng(partition), 8)])
load_server = lambda: draw(np.random.default_rng(9), 8)
evaluate = lambda x, y: {"first": x[0]}
"""
    )
    (here / "weights.py").write_text(text)
    (task,) = resolve({"task": "weights.py", "algorithm": "PrimalDual"}).make_tasks()
    assert (task.metric, task.x0, task.clients.server.total) == ("first", None, 8)


def test_algorithms_of_ones_own(here):
    text = PLAIN + "\nclass Mine(rk.FedAvg):\n    pass\n\nalgorithms = {'Mine': Mine}\nalgorithm = 'mine'\n"
    (here / "plain.py").write_text(text)
    settings = settings_from("plain.py", {}, ["eta_y=0.25"])
    assert (settings.algorithm, settings.make_algorithm().eta_y) == ("Mine", 0.25)
    assert type(settings.make_algorithm()).__name__ == "Mine"
    assert open_site("plain.py").algorithms["Mine"] is type(settings.make_algorithm())


def test_a_module_finds_what_lies_beside_it(here):
    (here / "beside").mkdir()
    (here / "beside" / "size_of_it.py").write_text("SIZE = 3\n")
    text = MAKE.replace("def make(", "from size_of_it import SIZE\nfrom pathlib import Path\nHERE = Path(__file__).parent\n"
                        "def make(").replace("size=8", "size=SIZE")  # fmt: skip
    (here / "beside" / "ridge.py").write_text(text)
    assert open_source("beside/ridge.py").default_options("own")["size"] == 3


# --- seeds ------------------------------------------------------------------------------------------------------------


def test_seeds_are_lanes_each_with_a_problem_of_its_own(made):
    settings = resolve({"task": "ridge.py", "seeds": 3, "seed": 5, "rounds": 4, "every": 2})
    start_run(settings, made.parent / "run")
    history = read_run(made.parent / "run").history
    for lane in range(3):
        (task,) = resolve({"task": "ridge.py", "seed": 5 + lane}).make_tasks()
        alone = rk.solve(
            task.problem, settings.make_algorithm(), task.clients, task.x0, task.y0, rounds=4, every=2,
            evaluate=task.evaluate, key=5 + lane,
        )  # fmt: skip
        np.testing.assert_allclose(history["loss"][:, lane], alone.history["loss"], rtol=1e-5)
    assert len(set(history["loss"][-1].tolist())) == 3


def test_a_loss_that_depends_on_the_seed_is_refused(made):
    text = MAKE.replace("rk.Bilevel(upper, lower)", "rk.Bilevel(lambda x, y, batch: seed * upper(x, y, batch), lower)")
    made.write_text(text)
    resolve({"task": "ridge.py"}).make_tasks()
    with pytest.raises(
        ValueError, match=r"ridge\.py: the problem of seed number 1 is another one than that of the first"
    ):
        resolve({"task": "ridge.py", "seeds": 2}).make_tasks()


def test_functions_with_the_same_code_become_lanes():
    def make(number, data):
        def inner(x):
            return x + data.sum()

        def outer(x, more=number):
            return inner(x) * number + more

        return outer

    one, other = (make(float(n), np.full(2, n, np.float32)) for n in (1, 2))
    assert same(one, make(1.0, np.ones(2, np.float32)))
    assert not same(one, other)
    lanes = as_lanes([one, other])
    assert [float(each(1.0)) for each in lanes] == [one(1.0), other(1.0)]
    assert fingerprint(one) == fingerprint(make(1.0, np.ones(2, np.float32))) != fingerprint(other)


def test_a_sweep_is_told_to_hold_data_out(made):
    settings = resolve({"task": "ridge.py", "rounds": 2})
    (trial,) = sweep(settings, [{"eta_x": 0.1}], progress=False, metric="held")
    assert trial.mean == 1.0
    assert float(settings.make_tasks()[0].evaluate(np.zeros(2), np.zeros(2))["held"]) == 0.0


def test_a_sweep_spends_no_privacy(made):
    settings = resolve({"task": "ridge.py", "rounds": 2, "privacy": "clip=0.5, noise=1.0"})
    with pytest.raises(ValueError, match="privacy: rates are not searched for on the clients' data"):
        sweep(settings, [{"eta_x": 0.1}, {"eta_x": 0.2}], progress=False)


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(made):
    """A whole run, and one that was stopped after round 3."""
    settings = resolve({"task": "ridge.py", "seeds": 2})
    start_run(settings, made.parent / "whole", checkpoint_seconds=0)
    with pytest.raises(Stop):
        start_run(settings, made.parent / "run", checkpoint_seconds=0, watch=stop_after(3))
    return made.parent / "run"


def assert_ends_as_whole(folder):
    whole = folder.parent / "whole" / "result.safetensors"
    assert (folder / "result.safetensors").read_bytes() == whole.read_bytes()


def test_a_run_is_resumed_bit_by_bit_and_not_with_a_changed_module(stopped, monkeypatch):
    config = read_config(stopped)
    assert config["source"]["name"] == "ridge.py"
    assert (stopped / "problem.py").read_text() == MAKE
    module = stopped.parent / "ridge.py"
    module.write_text(MAKE + "\n# changed\n")
    with pytest.raises(
        ValueError, match=r"ridge\.py was changed since the run in .* began: start a new run.*problem\.py"
    ):
        resume_run(stopped)
    with pytest.warns(UserWarning, match="was changed since"):
        again = settings_from(str(stopped / "config.toml"), {}, [])
    start_run(again, stopped.parent / "again")  # with the copy
    assert_ends_as_whole(stopped.parent / "again")
    module.write_text(MAKE)
    (stopped.parent / "elsewhere").mkdir()
    monkeypatch.chdir(stopped.parent / "elsewhere")
    resume_run(stopped)
    assert_ends_as_whole(stopped)


def test_where_the_module_is_gone_the_copy_is_used(stopped):
    (stopped.parent / "ridge.py").unlink()
    resume_run(stopped)
    assert_ends_as_whole(stopped)
    (stopped / "problem.py").write_text(MAKE + "\n# changed\n")
    with pytest.raises(ValueError, match=r"is gone or changed, and .* is no copy of it"):
        resume_run(stopped)


def test_a_folder_can_be_moved(stopped):
    shutil.move(stopped, stopped.parent / "moved")
    resume_run(stopped.parent / "moved")
    assert_ends_as_whole(stopped.parent / "moved")


def test_data_that_changed_are_noticed(here):
    np.save(here / "size.npy", 8)
    (here / "ridge.py").write_text(MAKE.replace("    rng =", "    size = int(np.load('size.npy'))\n    rng ="))
    with pytest.raises(Stop):
        start_run(resolve({"task": "ridge.py"}), here / "run", checkpoint_seconds=0, watch=stop_after(1))
    np.save(here / "size.npy", 9)
    open_source("ridge.py").module._made = None  # another process would not have it
    with pytest.raises(ValueError, match=r"ridge\.py does not make the data any more with which"):
        resume_run(here / "run")


def test_nodes_open_the_run_of_a_module(stopped):
    site = open_site(str(stopped / "config.toml"))
    (task,) = resolve({"task": "ridge.py"}).make_tasks()
    assert site.n == 3
    np.testing.assert_array_equal(site.load([1]).lower.data["a"], task.clients.lower.take(1, np.arange(8))["a"])


# --- rk.run -----------------------------------------------------------------------------------------------------------


def call(here, folder="run", key=0, seed=0, **more):
    task = resolve({"task": "ridge.py", "seed": seed}).make_tasks()[0]
    how = {"rounds": 6, "every": 2, "batch_size": 4, "participation": 2, "evaluate": task.evaluate, **more}
    algorithm = rk.FedBiO(eta_x=0.1, eta_y=0.1, eta_z=0.1)
    return rk.run(task.problem, algorithm, task.clients, task.x0, task.y0, folder=here / folder, key=key, **how)


def test_rk_run_leaves_a_folder_and_goes_on(made, here, monkeypatch):
    whole = call(here, "whole")
    assert read_run(here / "whole").metric == "loss"
    saved = []

    def stop(folder, checkpoint, *rest):
        save(folder, checkpoint, *rest)
        saved.append(int(checkpoint.state.round))
        raise Stop

    from rookery.experiment import running

    save = running.save_checkpoint
    monkeypatch.setattr(running, "save_checkpoint", stop)
    with pytest.raises(Stop):
        call(here, checkpoint_seconds=0)
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert 0 < saved[0] < 6
    again = call(here)
    assert load_file(here / "run" / "result.safetensors")["y"].tobytes() == np.asarray(whole.y).tobytes()
    np.testing.assert_array_equal(again.history["loss"], whole.history["loss"])
    done = call(here)
    assert (done.rounds, np.asarray(done.y).tobytes()) == (6, np.asarray(whole.y).tobytes())


OTHER = {
    "rounds": ({"rounds": 7}, "another rounds: choose"),
    "key": ({"key": 1}, "another key: choose"),
    "data": ({"seed": 1}, "another data and evaluate: choose"),
    "batch": ({"batch_size": 5}, "another batch_size: choose"),
}


def test_rk_run_refuses_other_arguments(made, here):
    call(here)
    before = sorted(path.name for path in here.rglob("*"))
    for more, message in OTHER.values():
        with pytest.raises(ValueError, match=message):
            call(here, **more)
    made.write_text(MAKE.replace("jnp.exp(x)", "jnp.exp(2 * x)"))
    with pytest.raises(ValueError, match="another problem: choose"):
        call(here)
    assert sorted(path.name for path in here.rglob("*")) == before
    with pytest.raises(ValueError, match=r"was made by rk\.run, from Python: the same call of rk\.run continues it"):
        resume_run(here / "run")
    start_run(resolve({"task": "ridge.py"}), here / "other")
    with pytest.raises(ValueError, match=r"holds a run that was not made by rk\.run"):
        call(here, "other")
