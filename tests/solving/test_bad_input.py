"""What a user may get wrong: an error of the right type that names the argument and the value, before compilation."""

import re
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.solving.prepare import prepare, single

SIMULATOR = import_module("rookery.engines.simulator")
NAN, INF = float("nan"), float("inf")
X, W = jnp.ones(2), jnp.ones(2)
RNG = np.random.default_rng(0)
DATA = [{"a": RNG.standard_normal((size, 2)), "t": RNG.standard_normal(size)} for size in (2, 3, 4)]
CLIENTS = rk.Clients(DATA, server=DATA[0])
EQUAL = rk.Clients([{name: each[:2] for name, each in data.items()} for data in DATA])


def upper(x, y, batch):
    return 0.5 * ((batch["a"] @ y - batch["t"]) ** 2).mean() + 0.5 * x @ x


def lower(x, y, batch):
    return (0.5 * y @ y - (batch["a"] @ y) * (batch["a"] @ x)).mean()


def loss(w, batch):
    return 0.5 * ((batch["a"] @ w - batch["t"]) ** 2).mean()


def spoiled(data, name, value):
    """The same with a value in the last example."""
    array = data[name].copy()
    array[-1] = value
    return {**data, name: array}


def cleaning(pick):
    """A weight for each sample, picked by its number."""
    return rk.Bilevel(upper, lambda x, y, batch: (pick(x, batch["i"]) * (batch["a"] @ y - batch["t"]) ** 2).mean())


NUMBERED = rk.Clients([{**data, "i": np.arange(3 * k, 3 * k + len(data["t"]))[::-1]} for k, data in enumerate(DATA)])
"""Samples of clients 0, 1 and 2 have the numbers 1, 0; 5, 4, 3; 9, 8, 7, 6."""


def nothing(x, y):
    return {}


BILEVEL = rk.Bilevel(upper, lower)
LOCAL = rk.Bilevel(upper, lower, lower_level="local")
MINIMAX = rk.Minimax(lambda x, y, batch: upper(x, y, batch) - y @ y)
WEIGHTING = rk.ClientWeighting(loss)


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    def advance(*_):
        raise AssertionError("it got as far as the compiled loop")

    monkeypatch.setattr(SIMULATOR, "advance", advance)


def solve(problem=BILEVEL, algorithm=None, clients=CLIENTS, x0=X, y0=X, **setting):
    algorithm = rk.FedBiO() if algorithm is None else algorithm
    return rk.solve(problem, algorithm, clients, x0, y0, **{"rounds": 2, "evaluate": nothing, **setting})


def many(algorithm=None, clients=CLIENTS, x0=X, y0=X, **setting):
    algorithm = rk.FedBiO() if algorithm is None else algorithm
    return rk.solve_many(BILEVEL, algorithm, clients, x0, y0, **{"rounds": 2, "evaluate": nothing, **setting})


def bilevel(**losses):
    return rk.Bilevel(**{"upper": upper, "lower": lower, **losses})


def test_the_setting_itself_is_fine():
    for problem, algorithm in (
        (BILEVEL, "FedBiO"),
        (LOCAL, "FedBiO-Local"),
        (MINIMAX, "Local SGDA"),
        (WEIGHTING, "PrimalDual"),
    ):
        x0 = None if problem is WEIGHTING else X
        with pytest.raises(AssertionError, match="compiled loop"):
            solve(problem, rk.registry[algorithm](), x0=x0, batch_size=2)
    with pytest.raises(AssertionError, match="compiled loop"):
        many(keys=[0, 1])


CASES = {
    # --- rounds, steps, batches, keys --------------------------------------------------------------------------------
    "rounds 0": (lambda: solve(rounds=0), ValueError, r"rounds .*at least 1, got 0"),
    "rounds 1.5": (lambda: solve(rounds=1.5), ValueError, r"rounds .*got 1\.5"),
    "rounds True": (lambda: solve(rounds=True), ValueError, r"rounds .*got True"),
    "every 0": (lambda: solve(every=0), ValueError, r"every .*at least 1, got 0"),
    "every -2": (lambda: solve(every=-2), ValueError, r"every .*got -2"),
    "no local step": (lambda: solve(local_steps=0), ValueError, r"local_steps .*at least 1.*got 0"),
    "half a local step": (lambda: solve(local_steps=0.5), ValueError, r"local_steps .*got 0\.5"),
    "Steps(0, 3)": (lambda: rk.Steps(0, 3), ValueError, r"Steps: .*1 <= low.*low=0, high=3"),
    "Steps(5, 2)": (lambda: rk.Steps(5, 2), ValueError, r"low <= high.*low=5, high=2"),
    "Steps(1.0, 2)": (lambda: rk.Steps(1.0, 2), ValueError, r"integers.*low=1\.0"),
    "steps where none are made": (
        lambda: solve(WEIGHTING, rk.PrimalDual(), x0=None, local_steps=3), ValueError,
        r"local_steps must be 1.*PrimalDual.*got 3"),
    "unequal steps": (
        lambda: solve(algorithm=rk.FedBiOAcc(), local_steps=rk.Steps(1, 3)), ValueError,
        r"FedBiOAcc: local_steps .*high=3"),
    "steps of DistBiO": (
        lambda: solve(LOCAL, rk.DistBiO(), local_steps=2), ValueError, r"DistBiO: local_steps must be 1, got 2"),
    "batch_size 0": (lambda: solve(batch_size=0), ValueError, r"batch_size .*at least 1, got 0"),
    "batch_size (2, 0)": (lambda: solve(batch_size=(2, 0)), ValueError, r"batch_size .*got 0"),
    "batch_size of three": (
        lambda: solve(batch_size=(1, 2, 3)), ValueError, r"batch_size .*\(lower, upper\), got \(1, 2, 3\)"),
    "batch_size 1.5": (lambda: solve(batch_size=1.5), ValueError, r"batch_size .*got 1\.5"),
    "key text": (lambda: solve(key="a"), TypeError, r"key must be an integer seed.*got 'a'"),
    "old style key": (
        lambda: solve(key=jax.random.PRNGKey(0)), TypeError, r"key must be an integer seed or a jax\.random\.key"),
    "other kind of key": (
        lambda: solve(key=jax.random.key(0, impl="rbg")), ValueError, r"key .*threefry2x32.*got rbg"),
    "key too large": (lambda: solve(key=2**70), (ValueError, TypeError), rf"key .*{2**70}"),
    # --- participation -----------------------------------------------------------------------------------------------
    "more participants than clients": (
        lambda: solve(participation=4), ValueError, r"participation: .*4 participants from 3"),
    "no participants": (lambda: solve(participation=0), ValueError, r"count .*at least 1, got 0"),
    "a share of clients": (
        lambda: solve(participation=0.5), TypeError, r"participation must be rk\.Uniform.*got 0\.5"),
    "Uniform(2.0)": (lambda: rk.Uniform(2.0), ValueError, r"Uniform: count .*got 2\.0"),
    "Bernoulli(0)": (lambda: rk.Bernoulli(0), ValueError, r"Bernoulli: probability must be in \(0, 1\], got 0"),
    "Bernoulli(1.5)": (lambda: rk.Bernoulli(1.5), ValueError, r"probability .*got 1\.5"),
    "Bernoulli(nan)": (lambda: rk.Bernoulli(NAN), ValueError, r"probability .*got nan"),
    "Bernoulli('often')": (lambda: rk.Bernoulli("often"), (ValueError, TypeError), r"probability .*'often'"),
    "Replay twice": (
        lambda: rk.Replay([[0, 1], [2, 2]]), ValueError, r"Replay: .*once a round, got \[2, 2\] in round 1"),
    "Replay nobody": (
        lambda: rk.Replay([[0], []]), ValueError, r"Replay: .*at least one participant, got \[\[0\], \[\]\]"),
    "Replay no rounds": (lambda: rk.Replay([]), ValueError, r"Replay: .*got \[\]"),
    "Replay 3 of 0..2": (
        lambda: solve(participation=rk.Replay([[0, 3]])), ValueError, r"participation: .*0\.\.2, got 3"),
    "Replay -1": (lambda: solve(participation=rk.Replay([[0, -1]])), ValueError, r"0\.\.2, got -1"),
    "Replay 0.5": (lambda: rk.Replay([[0.5]]), (ValueError, TypeError), r"Replay: .*0\.5"),
    "Replay without rounds": (lambda: rk.Replay([0, 1]), (ValueError, TypeError), r"Replay: .*\[0, 1\]"),
    "nobody with a weight": (
        lambda: solve(clients=rk.Clients(DATA, weights=[1, 0, 0]), participation=1), ValueError,
        r"weights must be positive.*0"),
    "clients_at_once 0": (lambda: rk.Simulator(0), ValueError, r"clients_at_once .*at least 1, got 0"),
    "clients_at_once 1.5": (lambda: rk.Simulator(1.5), ValueError, r"clients_at_once .*got 1\.5"),
    # --- clients and their data --------------------------------------------------------------------------------------
    "weights sum": (lambda: rk.Clients(DATA, weights=[0.5, 0.5, 0.5]), ValueError, r"weights .*sum to 1, .*sum 1\.5"),
    "weights length": (lambda: rk.Clients(DATA, weights=[0.5, 0.5]), ValueError, r"weights .*\(3\), got shape \(2,\)"),
    "weights negative": (
        lambda: rk.Clients(DATA, weights=[1.5, -0.5, 0]), ValueError, r"weights .*non-negative.*smallest -0\.5"),
    "weights nan": (lambda: rk.Clients(DATA, weights=[NAN, 0.5, 0.5]), ValueError, r"weights .*nan"),
    "client without data": (
        lambda: rk.Clients([DATA[0], {"a": np.zeros((0, 2)), "t": np.zeros(0)}]), ValueError,
        r"lower: .*client 1 has none"),
    "client without rows": (
        lambda: rk.Split(DATA[0], [[0], []]), ValueError, r"every client needs data, client 1 has none"),
    "no clients": (lambda: rk.Clients([]), TypeError, r"lower must be a rk\.Split or a list.*got \[\]"),
    "one pytree": (
        lambda: rk.Clients(DATA[0]), TypeError,
        r"lower must be a rk\.Split or a list.*got a dict: \{a: float64\[2, 2\], t: float64\[2\]\}$"),
    "labels that are words": (
        lambda: rk.Clients([DATA[0], {"a": DATA[1]["a"], "t": np.array(["setosa", "iris", "iris"])}]), TypeError,
        r"lower\[1\]: array 't' must hold numbers, got <U6 \(such as 'setosa'\); np\.unique"),
    "words in a split": (
        lambda: rk.Split({"a": np.ones((2, 2)), "t": ["a", "b"]}, [[0], [1]], "upper"), TypeError,
        r"upper: array 't\.0' must hold numbers"),
    "an array of objects": (
        lambda: rk.Clients(DATA, server={"a": np.ones((2, 2)), "t": np.array([1, None])}), TypeError,
        r"server: array 't' must hold numbers, got object"),
    "NaN in the data": (
        lambda: rk.Clients(DATA, [DATA[0], spoiled(DATA[1], "t", NAN), DATA[2]]), ValueError,
        r"upper: data must be finite, client 1 has nan in 't' \(example 2\)"),
    "infinity in the data": (
        lambda: rk.Split(spoiled(DATA[2], "a", -INF), [[0, 1], [2, 3]], "lower"), ValueError,
        r"lower: data must be finite, client 1 has -inf in 'a' \(example 1\)"),
    "NaN at the server": (
        lambda: rk.Clients(DATA, server=spoiled(DATA[0], "a", NAN)), ValueError, r"server: .*has nan in 'a'"),
    "other structure": (
        lambda: rk.Clients([DATA[0], {"a": DATA[1]["a"]}]), ValueError, r"lower: .*structure; client 0.*client 1"),
    "other shape": (
        lambda: rk.Clients([DATA[0], {"a": np.zeros((2, 3)), "t": np.zeros(2)}]), ValueError,
        r"client 0 has float64\[2\], client 1 has float64\[3\]"),
    "other dtype": (
        lambda: rk.Clients(DATA, [DATA[0], *({**d, "t": d["t"].astype(np.float32)} for d in DATA[1:])]), ValueError,
        r"upper: .*dtype; client 0 has float64\[\], client 1 has float32\[\]"),
    "lengths differ": (
        lambda: rk.Clients([{"a": np.zeros((2, 2)), "t": np.zeros(3)}]), ValueError,
        r"lower\[0\]: .*leading axis.*\(3,\)"),
    "scalars": (lambda: rk.Clients([1.0, 2.0]), ValueError, r"lower\[0\]: .*leading axis"),
    "other number of clients": (lambda: rk.Clients(DATA, DATA[:2]), ValueError, r"upper .*as lower \(3\), got 2"),
    "index too large": (lambda: rk.Split(DATA[0], [[0, 5]]), ValueError, r"indices must lie in 0\.\.1.*got 5"),
    "negative index": (lambda: rk.Split(DATA[0], [[-1]]), ValueError, r"indices must lie in 0\.\.1.*got -1"),
    "index of floats": (
        lambda: rk.Split(DATA[0], [[0.5]]), TypeError, r"indices must be lists of integers, got float64"),
    "clients of another type": (
        lambda: solve(clients=DATA[0]), TypeError,
        r"clients must be rk\.Clients\(\.\.\.\), got a dict: \{a: float64\[2, 2\], t: float64\[2\]\}$"),
    "empty server": (lambda: rk.Clients(DATA, server={"a": np.zeros((0, 2))}), ValueError, r"server: .*data"),
    "nothing to share": (lambda: EQUAL.share_server(), ValueError, r"server must be given.*None"),
    "weighting without server": (
        lambda: solve(WEIGHTING, "PrimalDual", EQUAL, None), ValueError, r"data at the server, give .*server="),
    # --- problems and losses -----------------------------------------------------------------------------------------
    "lower_level typo": (
        lambda: bilevel(lower_level="locl"), ValueError, r"lower_level must be 'global' or 'local', got 'locl'"),
    "loss is no function": (lambda: bilevel(upper=3), TypeError, r"upper must be a function.*got 3"),
    "set is no set": (
        lambda: bilevel(x_set=(0, 1)), TypeError, r"x_set must be a set such as rk\.Box\(0, 1\), got \(0, 1\)"),
    "a problem of another type": (
        lambda: solve(problem=upper), TypeError, r"problem must be rk\.Bilevel.*got <function"),
    "loss is a vector": (
        lambda: solve(bilevel(upper=lambda x, y, batch: x)), ValueError, r"upper loss must return a scalar.*\(2,\)"),
    "loss is an integer": (
        lambda: solve(bilevel(lower=lambda x, y, batch: 1)), ValueError,
        r"lower loss must return a scalar of floats, got int"),
    "objective is a vector": (
        lambda: solve(rk.Minimax(lambda x, y, batch: x), "Local SGDA"), ValueError,
        r"objective.* must return a scalar.*\(2,\)"),
    "weighting loss is a vector": (
        lambda: solve(rk.ClientWeighting(lambda w, batch: w), "PrimalDual", x0=None), ValueError,
        r"loss must return a scalar.*\(2,\)"),
    "loss of two arguments": (
        lambda: solve(bilevel(upper=lambda x, y: x @ y)), TypeError, r"upper must be a function of \(x, y, batch\)"),
    "loss of four arguments": (
        lambda: bilevel(upper=lambda x, y, batch, penalty: x @ y), TypeError,
        r"upper must be a function of \(x, y, batch\), which may also name key .* and client .*"
        r"got <lambda>\(x, y, batch, penalty\)\. .*functools\.partial"),
    "loss that wants another array": (
        lambda: solve(bilevel(lower=lambda x, y, batch: (batch["label"] * y).sum())), ValueError,
        r"^lower loss: KeyError: 'label' \(it was called with x: float64\[2\], y: float64\[2\], "
        r"batch: \{a: float64\[2, 2\], t: float64\[2\]\}\)$"),
    "objective that wants another array": (
        lambda: solve(rk.Minimax(lambda x, y, batch: batch["label"].mean()), "Local SGDA"), ValueError,
        r"^objective: KeyError: 'label'"),
    "weighting loss that wants another array": (
        lambda: solve(rk.ClientWeighting(lambda w, batch: batch["label"].mean()), "PrimalDual", x0=None), ValueError,
        r"^loss: KeyError: 'label' \(it was called with w: float64\[2\], batch:"),
    "y of another dimension": (
        lambda: solve(y0=jnp.ones(3)), TypeError,
        r"^lower loss: TypeError: .*\(it was called with x: float64\[2\], y: float64\[3\], batch: \{a: float64\[2, 2\]"),
    "x and y exchanged": (
        lambda: solve(bilevel(lower=lambda y, x, batch: loss(y["w"], batch) + x @ x), y0={"w": X}), TypeError,
        r"^lower loss: .*x: float64\[2\], y: \{w: float64\[2\]\}.*works with x and y exchanged: .*x0 comes before y0"),
    "x is called though it is y that is a model": (
        lambda: solve(bilevel(upper=lambda x, y, batch: {X.shape: 1.0}[x] + y @ y)), TypeError,
        r"^upper loss: TypeError: unhashable.*it was called with x: float64\[2\]"),
    "x0 too short": (
        lambda: solve(cleaning(lambda x, i: x[i]), clients=NUMBERED, y0=X), ValueError,
        r"^lower loss: index out of range: it reads place 9 of an axis of length 2, .*Is x0 or y0 too short\?"),
    "x0 too short for one sample": (
        lambda: solve(cleaning(lambda x, i: x[i.max()]), clients=NUMBERED), ValueError, r"reads place 9 .* length 2,"),
    "x0 too short for the clients": (
        lambda: solve(bilevel(lower=lambda x, y, batch, client: x[client] * lower(x, y, batch))), ValueError,
        r"^lower loss: index out of range: it reads place 2 of an axis of length 2,"),
    "sum over whole sets": (
        lambda: solve(bilevel(lower=lambda x, y, batch: lower(x, y, batch) * len(batch["t"]))), ValueError,
        r"lower loss must be a mean over its batch.*unequal sizes.*batch_size"),
    "sum over whole sets that is 0 at the start": (
        lambda: solve(bilevel(lower=lambda x, y, batch: (y @ y) * len(batch["t"])), y0=0 * X), ValueError,
        r"lower loss must be a mean"),
    "set of other shape": (
        lambda: solve(bilevel(x_set=rk.Box(jnp.zeros(3), jnp.ones(3)))), ValueError,
        r"Box.* does not fit x_set: .*\(3,\).*\(2,\)"),
    "simplex for two arrays": (
        lambda: solve(bilevel(y_set=rk.Simplex()), y0={"a": X, "b": X}), ValueError, r"Simplex.* does not fit y_set"),
    "ball of radius 0": (lambda: rk.Ball(0.0), ValueError, r"radius=0\.0 must be positive"),
    "empty box": (lambda: rk.Box(1.0, 0.0), ValueError, r"low=1\.0 must be <= high=0\.0"),
    # --- where to start ----------------------------------------------------------------------------------------------
    "integers": (lambda: solve(x0=jnp.arange(2)), TypeError, r"x0 must hold at least one array of floats, got .*int"),
    "nothing": (lambda: solve(y0=None), TypeError, r"y0 must hold at least one array of floats"),
    "complex": (lambda: solve(x0=X + 1j), TypeError, r"x0 must be real, got .*complex128"),
    "two precisions": (
        lambda: solve(y0=X.astype(jnp.float32)), ValueError, r"y0 must have the dtype of x0 \(float64\), got float32"),
    "weights of other length": (
        lambda: solve(WEIGHTING, "PrimalDual", x0=X), ValueError,
        r"x0 must hold one weight a client \(3\), got shape \(2,\)"),
    "weights outside the simplex": (
        lambda: solve(WEIGHTING, "PrimalDual", x0=jnp.ones(3)), ValueError, r"x0 must be in Simplex"),
    "x0 outside its set": (
        lambda: solve(bilevel(x_set=rk.Box(0, 1)), x0=3 * X), ValueError,
        r"x0 must be in Box\(.*got one with an entry that is 2 away from it$"),
    "y0 outside its set": (
        lambda: solve(bilevel(y_set=rk.Simplex())), ValueError, r"y0 must be in Simplex\(.*0\.5 away"),
    "a lane outside its set": (
        lambda: rk.solve_many(bilevel(y_set=rk.Ball(2.0)), "FedBiO", CLIENTS, X, rk.Lanes([X, X, 9 * X]), rounds=1),
        ValueError, r"y0 must be in Ball\(.*away from it in lane 2$"),
    "x0 is not finite": (lambda: solve(x0=X.at[1].set(NAN)), ValueError, r"^x0 must be finite, got nan$"),
    "y0 is not finite": (
        lambda: solve(y0={"w": [X, X / 0]}), ValueError, r"^y0\.w\.1 must be finite, got inf$"),
    "start from a number": (lambda: solve(start=3), (TypeError, ValueError), r"start .*3"),
    # --- evaluate and engine -----------------------------------------------------------------------------------------
    "metrics are arrays": (
        lambda: solve(evaluate=lambda x, y: {"x": x}), ValueError,
        r"evaluate must return scalars, got shape \(2,\) for 'x'"),
    "metrics of lanes are arrays": (
        lambda: many(keys=[0, 1], evaluate=lambda x, y: {"x": x}), ValueError, r"evaluate .*for 'x'"),
    "metrics in NumPy are arrays": (
        lambda: solve(evaluate=lambda x, y: {"x": np.asarray(x)}), ValueError,
        r"evaluate must return scalars.*\(2,\) for 'x'"),
    "metrics are no dictionary": (
        lambda: solve(evaluate=lambda x, y: x.sum()), TypeError, r"evaluate must return a dict"),
    "metric is not evaluated": (
        lambda: solve(metric="accuracy"), ValueError,
        r"metric must be one of what evaluate returns \(nothing\), got 'accuracy'"),
    "metric is no name": (lambda: solve(metric=len), TypeError, r"metric must be the name.*len"),
    "higher_is_better is no bool": (
        lambda: solve(metric="a", higher_is_better=1), TypeError, r"higher_is_better must be True or False, got 1"),
    "evaluate is no function": (lambda: solve(evaluate=3), TypeError, r"evaluate must be a function.*3"),
    "engine of another type": (lambda: solve(engine="gpu"), TypeError, r"engine must be an rk\.Engine such as rk\.Sim"),
    # --- which algorithm ---------------------------------------------------------------------------------------------
    "unknown name, with a suggestion": (
        lambda: solve(algorithm="MeFB"), ValueError, r"no 'MeFB'; did you mean 'MeFBO'\? There are: MeFBO"),
    "unknown name": (
        lambda: solve(algorithm="gradient"), ValueError, r"no 'gradient'.*There are: MeFBO, .*PrimalDual"),
    "a class": (
        lambda: solve(algorithm=rk.FedBiO), TypeError,
        r"algorithm must be an algorithm such as rk\.MeFBO\(\).*FedBiO"),
    "local algorithm, global problem": (
        lambda: solve(algorithm=rk.FedBiOLocal()), ValueError,
        r"FedBiO-Local solves bilevel-local.*this is a bilevel problem\. Algorithms for it: MeFBO.*lower_level='local'"),
    "bilevel algorithm, minimax problem": (
        lambda: solve(MINIMAX, rk.MeFBO()), ValueError, r"MeFBO solves bilevel.*minimax.*Local SGDA.*as_bilevel\(\)"),
    "bilevel algorithm, weighting problem": (
        lambda: solve(WEIGHTING, rk.MeFBO(), x0=None), ValueError,
        r"weighting problem\. Algorithms for it: PrimalDual.*as_bilevel\(\)"),
    "minimax algorithm, local problem": (
        lambda: solve(LOCAL, "Local SGDA"), ValueError, r"bilevel-local problem\. Algorithms for it: FedBiO-Local"),
    # --- rates -------------------------------------------------------------------------------------------------------
    "negative rate": (lambda: rk.FedBiO(eta_x=-0.1), ValueError, r"FedBiO: eta_x must be a number >= 0, got -0\.1"),
    "rate nan": (lambda: rk.MeFBO(gamma_x=NAN), ValueError, r"MeFBO: gamma_x .*got nan"),
    "rate inf": (lambda: rk.SimFBO(gamma_y=INF), ValueError, r"SimFBO: gamma_y .*got inf"),
    "rate text": (lambda: rk.FedBiO(eta_x="a"), ValueError, r"FedBiO: eta_x .*got 'a'"),
    "rate None": (lambda: rk.PrimalDual(eta_w=None), ValueError, r"PrimalDual: eta_w .*got None"),
    "rate True": (lambda: rk.LocalSGDA(eta_x=True), ValueError, r"LocalSGDA: eta_x .*got True"),
    "rate list": (lambda: rk.FedBiO(eta_x=[0.1, 0.2]), ValueError, r"FedBiO: eta_x must be a number.*\[0\.1, 0\.2\]"),
    "radius 0": (lambda: rk.FedBiO(radius=0), ValueError, r"FedBiO: radius must be positive, got 0"),
    "radius -1": (lambda: rk.PrimalDual(radius=-1.0), ValueError, r"PrimalDual: radius must be positive, got -1"),
    "radius nan": (lambda: rk.SimFBO(radius=NAN), ValueError, r"SimFBO: radius .*got nan"),
    "beta 0": (lambda: rk.ASFBO(beta=0), ValueError, r"ASFBO: beta must be in \(0, 1\], got 0"),
    "beta 1.5": (lambda: rk.LAASFBO(beta=1.5), ValueError, r"LAASFBO: beta must be in \(0, 1\], got 1\.5"),
    "beta text": (lambda: rk.ASFBO(beta="a"), ValueError, r"ASFBO: beta .*got 'a'"),
    "alpha 1.1": (lambda: rk.FedSGDAM(alpha=1.1), ValueError, r"FedSGDAM: alpha must be in .*got 1\.1"),
    "beta -0.1": (lambda: rk.FedSGDAM(beta=-0.1), ValueError, r"FedSGDAM: beta must be in .*got -0\.1"),
    "beta_x 0": (lambda: rk.MomentumLocalSGDA(beta_x=0.0), ValueError, r"beta_x must be in \(0, 1\], got 0"),
    "decay 2": (lambda: rk.ASFBO(decay=2.0), ValueError, r"ASFBO: decay must be in \[0, 1\], got 2"),
    "epsilon 0": (lambda: rk.ASFBO(epsilon=0.0), ValueError, r"ASFBO: epsilon must be positive, got 0"),
    "clip turned round": (
        lambda: rk.ASFBO(clip_x=(0.2, 0.1)), ValueError, r"ASFBO: clip_x .*0 <= low <= high, got \(0\.2, 0\.1\)"),
    "clip a number": (lambda: rk.ASFBO(clip_x=3), (ValueError, TypeError), r"ASFBO: clip_x .*got 3"),
    "rho": (
        lambda: rk.ShroFBO(rho="some"), ValueError,
        r"ShroFBO: rho must be 'all', 'active' or a positive number, got 'some'"),
    "rho 0": (lambda: rk.ShroFBO(rho=0), ValueError, r"ShroFBO: rho .*got 0"),
    "nu 0": (lambda: rk.MeFBO(nu=0), ValueError, r"MeFBO: nu must be positive, got 0"),
    "c -1": (lambda: rk.MeFBO(c=-1.0), ValueError, r"MeFBO: c must be positive, got -1"),
    "momentum above 1": (
        lambda: rk.FedBiOAcc(c_x=5.0, delta=2.0), ValueError, r"FedBiOAcc: c_x·δ_1² must be at most 1.*got 12\.59"),
    "momentum above 1, local": (
        lambda: rk.FedBiOAccLocal(c_y=30.0), ValueError, r"FedBiOAccLocal: c_y·δ_1² must be at most 1.*got 18\.8"),
    "momentum 0 with minibatches": (
        lambda: solve(algorithm=rk.FedBiOAcc(c_z=0.0), batch_size=2), ValueError,
        r"FedBiOAcc: c_z must be positive unless batch_size is None, got 0"),
    "momentum 0 with minibatches, local": (
        lambda: solve(LOCAL, rk.FedBiOAccLocal(c_y=0.0), batch_size=2), ValueError,
        r"FedBiOAccLocal: c_y must be positive unless"),
    "alpha 0 with minibatches": (
        lambda: solve(MINIMAX, rk.FedSGDAM(alpha=0.0), batch_size=2), ValueError,
        r"FedSGDAM: alpha must be in \(0, 1\] unless.*got 0"),
    "beta 0 with half minibatches": (
        lambda: solve(MINIMAX, rk.FedSGDAM(beta=0.0), batch_size=(None, 2)), ValueError,
        r"FedSGDAM: beta must be in \(0, 1\] unless"),
    "delta 0": (lambda: rk.FedBiOAcc(delta=0), ValueError, r"FedBiOAcc: delta must be positive, got 0"),
    "offset -1": (lambda: rk.FedBiOAcc(offset=-1), ValueError, r"FedBiOAcc: offset .*got -1"),
    "first_batch 0": (
        lambda: rk.FedBiOAcc(first_batch=0), ValueError, r"FedBiOAcc: first_batch .*integer >= 1, got 0"),
    "products -1": (lambda: rk.FedBiOLocal(products=-1), ValueError, r"FedBiOLocal: products .*>= 0, got -1"),
    "neumann_step 0": (
        lambda: rk.FedBiOLocal(neumann_step=0), ValueError, r"FedBiOLocal: neumann_step must be positive, got 0"),
    "snapshot 0": (lambda: rk.LocalSGDAPlus(snapshot=0), ValueError, r"LocalSGDAPlus: snapshot .*>= 1, got 0"),
    "inner 0": (lambda: rk.PrimalDual(inner=0), ValueError, r"PrimalDual: inner .*>= 1, got 0"),
    "penalty -1": (lambda: rk.PrimalDual(penalty=-1.0), ValueError, r"PrimalDual: penalty .*got -1"),
    "schedule over no rounds": (lambda: rk.Cosine(1.0, 0.0, 0), ValueError, r"Cosine: rounds .*got 0"),
    "schedule of text": (
        lambda: solve(algorithm=rk.FedBiO(eta_x=rk.Power("a", 1.0))), TypeError,
        r"FedBiO\.eta_x\.scale must be a number.*got 'a'"),
    # --- solve_many --------------------------------------------------------------------------------------------------
    "no lanes": (lambda: many(), ValueError, r"lists of one length"),
    "empty lists": (lambda: many(keys=[]), ValueError, r"lists of one length.*'keys': 0"),
    "lists of two lengths": (
        lambda: many([rk.FedBiO()] * 3, keys=[0, 1]), ValueError, r"lengths \{'algorithm': 3, 'keys': 2\}"),
    "two classes": (
        lambda: many([rk.FedBiO(), rk.SimFBO()]), ValueError, r"algorithm: .*same class.*FedBiO.*lane 1 has .*SimFBO"),
    "two options": (
        lambda: many([rk.FedBiO(), rk.FedBiO(tie_batches=True)]), ValueError, r"algorithm: .*options.*lane 1"),
    "a schedule in one": (
        lambda: many([rk.FedBiO(), rk.FedBiO(eta_x=rk.Power(1.0, -1.0))]), ValueError,
        r"algorithm: .*schedules.*Power"),
    "starts of two shapes": (
        lambda: many(x0=rk.Lanes([X, jnp.ones(3)])), ValueError, r"x0 must have the same structure, shapes"),
    "splits of other data": (lambda: many(clients=[CLIENTS, EQUAL]), ValueError, r"clients: .*lane 1 differs"),
    "splits among other numbers": (
        lambda: many(clients=[rk.Clients(rk.Split(TEN, parts)) for parts in TWO]), ValueError,
        r"clients: .*lane 1 differs"),
    "a bad key among good ones": (lambda: many(keys=[0, "a"]), TypeError, r"key.* must be an integer seed.*got 'a'"),
    "a lane that is not there": (
        lambda: rk.Solution(X, X, rk.History(), None, 2).lane(2), IndexError, r"lane must be in 0\.\.1, got 2"),
}  # fmt: skip
TEN = {"a": RNG.standard_normal((10, 2)), "t": RNG.standard_normal(10)}
TWO = [[[0, 1, 2, 3], [4, 5], [6, 7], [9, 8]], [[0, 1, 2, 3], [4, 5, 6], [7, 9, 8]]]


@pytest.mark.parametrize("name", CASES)
def test_error(name):
    call, kind, message = CASES[name]
    with pytest.raises(kind) as caught:
        call()
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)


# --- what is allowed, and told ---------------------------------------------------------------------------------------


def warned(**setting):
    """The warnings of a run that is prepared, and where they point to."""
    with pytest.warns(UserWarning, match=":") as caught, pytest.raises(AssertionError, match="compiled loop"):
        solve(**setting)
    assert all(each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


def test_x_that_no_loss_uses_is_told():
    assert warned(problem=bilevel(upper=lambda x, y, batch: loss(y, batch), lower=lambda x, y, batch: y @ y)) == [
        "x is used in no loss: nothing can be learned about it"
    ]
    told = warned(problem=rk.Minimax(lambda x, y, batch: -y @ y), algorithm="Local SGDA")
    assert told == ["x is used in no loss: nothing can be learned about it"]


def test_a_batch_larger_than_the_data_is_told_once_for_the_same_data():
    told = (
        "batch_size 5 is more than the 2 lower examples of client 0: "
        "they are drawn with replacement. None takes whole sets"
    )
    assert warned(batch_size=5) == [told]
    assert warned(batch_size=(2, 3)) == [told.replace("5", "3").replace("lower", "upper")]
    assert warned(problem=MINIMAX, algorithm="Local SGDA", batch_size=5) == [told.replace("lower", "upper")]
    server = told.replace("lower examples of client 0", "examples of the server")
    assert warned(problem=WEIGHTING, algorithm="PrimalDual", x0=None, batch_size=(2, 5)) == [server]


def test_an_index_that_vmap_clamps_is_told():
    """``mode="clip"`` makes the same program, and is asked for: no error."""
    told = "lower loss: index out of range: it reads place 9 of an axis of length 2; the last place is taken instead"
    assert warned(problem=cleaning(lambda x, i: jax.vmap(lambda j: x[j])(i)), clients=NUMBERED) == [told]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "pick",
    [
        lambda x, i: x[i % 2],
        lambda x, i: x[-1 - i % 2],
        lambda x, i: jnp.where(i < 2, x.at[i].get(mode="fill", fill_value=0), 1),
        lambda x, i: jax.lax.scan(lambda s, j: (s + x[j % 2], None), 0.0, i)[0],
    ],
)
def test_indices_in_range_are_fine(pick):
    with pytest.raises(AssertionError, match="compiled loop"):
        solve(cleaning(pick), clients=NUMBERED, batch_size=1)


def test_nan_that_nobody_holds_is_fine():
    data = spoiled(DATA[2], "a", NAN)
    assert rk.Clients(rk.Split(data, [[0, 1], [2]])).n == 2
    with pytest.raises(ValueError, match=r"client 1 has nan in 'a' \(example 0\)"):
        rk.Split(data, [[0, 1], [3, 2]])


def test_finite_data_whose_sum_is_not_are_fine():
    assert rk.Clients([np.full((3, 2), 1.7e308)]).n == 1


def finished(algorithm=None, **more):
    """A solution as if two rounds had been made."""
    run = prepare(single(BILEVEL, algorithm or rk.FedBiO(), CLIENTS, X, X)).run
    return rk.Solution(X, X, rk.History(), run.initial_state())


def test_what_is_continued_must_fit():
    with pytest.raises((ValueError, TypeError), match=r"start .*(algorithm|FedBiOAcc)"):
        solve(algorithm=rk.FedBiOAcc(), start=finished())
    with pytest.raises((ValueError, TypeError), match=r"start .*clients"):
        solve(clients=rk.Clients(DATA[:2]), start=finished())
    with pytest.raises((ValueError, TypeError), match=r"start .*lanes"):
        many(keys=[0, 1], start=finished())


def test_mefbo_warns_of_what_cannot_be_stable():
    """ν >= 1/(2L_2), and steps for which an eigenmode grows: warnings only, and only where L_2 and μ are given."""

    def warned(**rates):
        with pytest.warns(UserWarning, match="MeFBO") as caught, pytest.raises(AssertionError, match="compiled loop"):
            solve(algorithm=rk.MeFBO(**rates), batch_size=2)
        return " ".join(str(each.message) for each in caught)

    assert "nu < 1/(2 L_2) = 0.25, got 2" in warned(nu=2.0, smoothness=2.0)
    text = warned(nu=0.1, gamma_y=0.5, gamma_theta=0.1, smoothness=1.0, convexity=0.1)
    assert "unstable where the lower level has curvature 0.1" in text


@pytest.mark.filterwarnings("error")
def test_mefbo_does_not_warn_of_stable_steps():
    for rates in ({}, {"nu": 0.2, "gamma_y": 0.05, "gamma_theta": 0.05, "smoothness": 2.0, "convexity": 1.0}):
        with pytest.raises(AssertionError, match="compiled loop"):
            solve(algorithm=rk.MeFBO(**rates), batch_size=2)
