"""T-08: exchanges, bytes and oracle calls that a run reports, against tables 7.1 and 7.2."""

from dataclasses import dataclass, field, replace
from importlib import import_module

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithm.cost import Cost
from tests.helpers import small_problems as small
from tests.helpers.draws import Draws

SIMULATOR, PREPARE = import_module("rookery.engines.simulator"), import_module("rookery.solving.prepare")
DX, DY, N, ROUNDS, Q = small.DX, small.DY, 4, 3, 5
D = DX + 2 * DY


@dataclass(frozen=True)
class Row:
    """Per participant and round: reals down and up, exchanges; calls of f, g, ∇²_yy·v, ∇²_xy·v as (a, b): a + bτ.

    ``first`` is what round 0 makes besides, ``server`` the calls of the server's own f in a round.
    """

    down: float
    up: float
    exchanges: int = 1
    calls: tuple = ((0, 0),) * 4
    first: tuple = (0, 0, 0, 0)
    server: int = 0
    options: dict = field(default_factory=dict)


def times(calls, a, b):
    """a + bτ evaluations of directions that cost ``calls`` each."""
    return tuple((a * each, b * each) for each in calls)


def once(*calls):
    return tuple((each, 0) for each in calls)


DIRECTIONS = (2, 1, 1, 1)  # D_x, D_y, D_z on five batches
LOCAL = (1, 1, Q, 1)  # a Neumann series of Q products
GRADIENT = (1, 0, 0, 0)
XY, W = DX + DY, DY

TABLE = {
    "MeFBO": Row(D, D, calls=times((1, 2, 0, 0), 0, 1)),
    "SimFBO": Row(D, D, calls=times(DIRECTIONS, 0, 1)),
    "ShroFBO": Row(D, D, calls=times(DIRECTIONS, 0, 1)),
    "ASFBO": Row(D, D, calls=times(DIRECTIONS, 0, 1)),
    "LA-ASFBO": Row(D, D, calls=times(DIRECTIONS, -1, 2)),
    "FedBiO": Row(D, D, calls=times(DIRECTIONS, 0, 1)),
    # The averaged point is sent again before the second exchange, for a newcomer needs all vectors before the first: three
    # vectors down where the table has two. So do all that average directions at the averaged point.
    "FedBiOAcc": Row(3 * D, 2 * D, 2, times(DIRECTIONS, 0, 2), DIRECTIONS),
    "Local-BSGVR": Row(3 * XY, 2 * XY, 2, times(LOCAL, 0, 2), LOCAL),
    "Local-BSGM": Row(3 * XY, 2 * XY, 2, times(LOCAL, 0, 1), LOCAL),
    "AdaFBiO": Row(3 * XY + DX + 1, 2 * XY, 2, times(LOCAL, 0, 2), LOCAL),
    # One ∇_y g a round more than the table: a d_y for whoever missed the round before; round 0 does not make it.
    "FedBiOAcc-Local": Row(3 * DX, 2 * DX, 2, ((0, 2), (1, 2), (0, 2 * Q), (0, 2)), (1, 0, Q, 1)),
    "DistBiOAcc": Row(3 * DX, 2 * DX, 2, ((0, 2), (1, 2), (0, 2 * Q), (0, 2)), (1, 0, Q, 1)),
    "FedBiO-Local": Row(DX, DX, calls=times(LOCAL, 0, 1)),
    "DistBiO": Row(DX, DX, calls=times(LOCAL, 0, 1)),
    "FedNest": Row(3 * DX + (4 + Q) * DY, 2 * DX + (3 + Q) * DY, 5 + Q, ((4, 0), (1, 2), (Q, 0), (1, 0))),
    "FedNest_code": Row(3 * DX + (4 + Q) * DY, 2 * DX + (3 + Q) * DY, 5 + Q, ((4, 0), (1, 2), (Q, 0), (1, 0))),
    "FedNest_SGD": Row(3 * DX + (3 + Q) * DY, 2 * DX + (2 + Q) * DY, 4 + Q, ((4, 0), (0, 1), (Q, 0), (1, 0))),
    "LFedNest": Row(2 * XY, XY, 2, ((1, 0), (0, 1), (Q, 0), (1, 0))),
    "LFedNest_SVRG": Row(3 * XY, 2 * XY, 4, ((3, 0), (1, 2), (Q, 0), (1, 0))),
    "FedMBO": Row(
        (2 + Q) * XY + Q * DY, DX + (1 + Q) * DY, 2 + Q, once(2, 1, Q - 1, 1)
    ),  # the longest chains, N' = Q − 1
    # One vector more than the table: z is warm-started. An entry that is sent is a real and an index of half its size.
    "CommFedBiO": Row(DX + (3 + Q) * DY, XY + 1.5 * Q, 2 + Q, ((1 + Q, 0), (0, 1), (Q, 0), (1, 0))),
    "FedAvg": Row(DY, DY, calls=times((0, 1, 0, 0), 0, 1)),
    "Local SGDA": Row(XY, XY, calls=times(GRADIENT, 0, 1)),
    "FSGDA": Row(XY, XY, calls=times(GRADIENT, 0, 1)),
    "Local SGDA+": Row(XY + DX, XY, calls=times(GRADIENT, 0, 1)),
    "FedSGDA+": Row(XY + DX, XY, calls=times(GRADIENT, 0, 1)),
    "FedSGDA-M": Row(
        2 * XY, 2 * XY, calls=times(GRADIENT, 0, 2), first=(-1, 0, 0, 0)
    ),  # one gradient where two are made
    "Momentum Local SGDA": Row(2 * XY, 2 * XY, calls=times(GRADIENT, 0, 1), first=GRADIENT),
    "SAGDA": Row(2 * XY, 2 * XY, 2, times(GRADIENT, 1, 1)),
    "CODA+": Row(XY + DX, XY, calls=times(GRADIENT, 0, 1)),
    "CODASCA": Row(2 * XY + DX, 2 * XY, calls=times(GRADIENT, 0, 1)),
    "FedNest-minimax": Row(3 * XY, 2 * XY, 4, ((3, 0), (1, 2), (0, 0), (0, 0))),
    "LFedNest-minimax": Row(2 * XY, XY, 2, ((1, 0), (0, 1), (0, 0), (0, 0))),
    "PrimalDual": Row(2 * W, 2 * W + 1, 1, once(0, 1, 1, 0), server=1),
    "PrimalDual_random": Row(2 * W, 2 * W + 1, 1, once(0, 1, 1, 0), server=1),
    "GD-CW": Row(2 * W, 2 * W + W**2, 2, once(0, 2, W, 0), server=1),
    # New active clients need w beside the vectors of the series, and λ is known one exchange later than in the table.
    "FedNest-CW": Row(5 * W, 2 * W + 1, 3, once(0, 2, 1, 0), server=1),
    "SUSTAIN-CW": Row(8 * W, 4 * W + 2, 2, once(0, 2, 2, 0), server=2),
    "SUSTAIN-CW_plain": Row(5 * W, 3 * W + 1, 2, once(0, 2, 1, 0), server=1),
    "SUSTAIN-CW_random": Row(4 * W, 2 * W + 2, 1, once(0, 2, 0, 0), server=2),  # K = 1: no product
    "RFHO-CW": Row(3 * W, 2 * W + 1, 2, once(0, 2, 1, 0), server=1),
    "RFHO-CW_forward": Row((N + 1) * W, (N + 1) * W, 1, once(0, 1, N, 0), server=1),
    "AFL": Row(W, W + 1, calls=once(0, 1, 0, 0)),
    "val": Row(0, 0, 0, server=1),
    "avg": Row(W, W, calls=once(0, 1, 0, 0)),
    "opt": Row(W, W, calls=once(0, 1, 0, 0)),
}
ELSEWHERE = {"FedNest_random", "FBO-AggITD", "FBO-AggITD_SVRG", "FBO-ITD"}
"""Which exchanges of the first three are skipped is random; all four are counted in algorithms/test_baselines_bilevel.py."""
OPTIONS = {
    "SimFBO": Row(D, D, calls=times((1, 1, 1, 1), 0, 1), options={"tie_batches": True}),
    "ShroFBO": Row(D, D + 1, calls=times(DIRECTIONS, 0, 1), options={"rho": "active"}),
    "LA-ASFBO": Row(D, D + 1, calls=times((1, 1, 1, 1), -1, 2), options={"rho": "active", "tie_batches": True}),
    "FedBiO-Local": Row(DX, DX, calls=times((1, 1, 2, 1), 0, 1), options={"products": 2}),
    "PrimalDual": Row(6 * W, 6 * W + 1, 3, once(0, 3, 3, 0), server=3, options={"inner": 3}),
    "PrimalDual_random": Row(6 * W, 6 * W + 3, 3, once(0, 3, 3, 0), server=3, options={"inner": 3}),
}


def nothing(x, y):
    return {}


@pytest.fixture(scope="module")
def worlds():
    """Of each class: (problem, clients, x0)."""
    _, b = small.make_bilevel(N, seed=1)
    _, m = small.make_minimax(N, seed=1)
    _, w = small.make_weighting(N, seed=1)
    bilevel = rk.Clients(rk.Split(*b["lower"]), rk.Split(*b["upper"]))
    x0 = jnp.zeros(DX)
    return {
        "bilevel": (rk.Bilevel(small.upper, small.lower), bilevel, x0),
        "bilevel-local": (rk.Bilevel(small.upper, small.lower, lower_level="local"), bilevel, x0),
        "minimax": (rk.Minimax(small.objective), rk.Clients(rk.Split(*m["upper"])), x0),
        "weighting": (
            rk.ClientWeighting(small.weighting_loss),
            rk.Clients(rk.Split(*w["lower"]), server=w["server"][0]),
            None,
        ),
    }


def work_of(setting, clients, number_of=1):
    """(participants, local steps) of all draws together, in all rounds and in the first."""
    draws = Draws(clients, **setting)
    total = np.zeros((2, 2), int)
    for t in range(ROUNDS):
        for draw in range(number_of):
            ids = draws.participants(t, draw)
            work = len(ids), sum(draws.steps(t, i) for i in ids)
            total[0] += work
            total[1] += work if t == 0 else 0
    return total


def expect(row, history, work):
    """Counters = reals x 8 bytes x participants, and Σ (a + bτ_i)."""
    (participants, steps), (in_first, _) = work
    assert history["exchanges"] == ROUNDS * row.exchanges
    assert history["bytes_down"] == 8 * row.down * participants
    assert history["bytes_up"] == 8 * row.up * participants
    units = ("grad_f", "grad_g", "hvp", "jvp")
    for unit, (a, b), first in zip(units, row.calls, row.first, strict=True):
        assert history[unit] == a * participants + b * steps + first * in_first, unit
    assert history["server_grad_f"] == ROUNDS * row.server


def only_traced(work):
    """An engine that computes nothing: every step of the round was executed by ``work`` participants."""

    def advance(run, state, rounds, at_once, lanes=None):
        def multiples(steps):
            for step in steps:
                yield from [step.count * m for m in multiples(step.stages)] if isinstance(step, rk.Repeat) else [1]

        times_ = list(multiples(run.setting.algorithm.round()))
        activity = [[[m * r, m * p, m * s] for r, (p, s) in zip((ROUNDS, 1), work, strict=True)] for m in times_]
        return replace(state, round=ROUNDS), np.asarray(activity)

    return advance


EQUAL_STEPS = {"FedBiOAcc", "FedBiOAcc-Local", "Local-BSGVR", "Local-BSGM", "AdaFBiO"}


def steps_for(name, wanted):
    if name.startswith("Dist") or name == "FedMBO" or rk.registry[name].solves == ("weighting",):
        return 1
    return 3 if name in EQUAL_STEPS and isinstance(wanted, rk.Steps) else wanted


def cases():
    """(algorithm, row, steps): three kinds of steps where the algorithm takes them."""
    rows = [*TABLE.items(), *OPTIONS.items()]
    for name, row in rows:
        for steps in dict.fromkeys(steps_for(name, each) for each in (1, 3, rk.Steps(1, 4))):
            options = "".join(f" {option}={value}" for option, value in row.options.items())
            yield pytest.param(name, row, steps, id=f"{name}{options} {steps}")


def test_the_tables_have_all_algorithms():
    assert set(TABLE) | ELSEWHERE == set(rk.registry)


@pytest.mark.parametrize(("name", "row", "steps"), list(cases()))
def test_a_round_costs_what_the_tables_say(monkeypatch, worlds, name, row, steps):
    kind = rk.registry[name]
    problem, clients, x0 = worlds[kind.solves[0]]
    setting = {"participation": 2, "local_steps": steps, "batch_size": 2, "key": 4}
    work = work_of(setting, clients)
    monkeypatch.setattr(SIMULATOR, "advance", only_traced(work))
    solution = rk.solve(problem, kind(**row.options), clients, x0, jnp.zeros(DY), rounds=ROUNDS, every=ROUNDS,
                        evaluate=nothing, **setting)  # fmt: skip
    expect(row, solution.history.last, work)


# --- and the compiled engine counts the same ------------------------------------------------------------------------------


def real(worlds, algorithm, **setting):
    problem, clients, x0 = worlds[algorithm.solves[0]]
    return rk.solve(problem, algorithm, clients, x0, jnp.zeros(DY), rounds=ROUNDS, every=2, evaluate=nothing, **setting)


def test_first_round(worlds):
    setting = {"participation": 2, "local_steps": rk.Steps(1, 4), "batch_size": 2, "key": 4}
    solution = real(worlds, rk.MomentumLocalSGDA(), **setting)
    expect(TABLE["Momentum Local SGDA"], solution.history.last, work_of(setting, worlds["minimax"][1]))
    assert list(solution.history["exchanges"]) == [0, 2, 3]


def test_a_skipped_exchange_costs_nothing(worlds):
    """average_first: one more exchange in round 0 only, in which the first directions are then made."""
    setting = {"participation": 2, "local_steps": 1, "batch_size": 2, "key": 4}
    history = real(worlds, rk.FedBiOAcc(average_first=True), **setting).history
    participants = 2 * ROUNDS
    assert history.last["exchanges"] == 2 * ROUNDS + 1
    assert history.last["bytes_down"] == 8 * (3 * D * participants + D * 2)
    assert history.last["bytes_up"] == 8 * (2 * D * participants + D * 2)
    assert [history.last[unit] for unit in ("grad_f", "grad_g", "hvp", "jvp")] == [
        each * (2 * participants + 2) for each in DIRECTIONS
    ]


def test_fresh_draws_of_active_clients(worlds):
    setting = {"participation": rk.Bernoulli(0.5), "batch_size": 2, "key": 4}
    work = work_of(setting, worlds["weighting"][1], number_of=3)
    assert work[0, 0] not in (3 * ROUNDS, 3 * ROUNDS * N)
    last = real(worlds, rk.PrimalDual(inner=3), **setting).history.last
    d = Draws(worlds["weighting"][1], **setting)
    asked = sum(len(d.participants(t, 2)) for t in range(ROUNDS))  # λᵀs_i, in the last of the three exchanges
    assert last["exchanges"] == last["server_grad_f"] == 3 * ROUNDS
    assert last["bytes_down"] == 8 * 2 * DY * work[0, 0]
    assert last["bytes_up"] == 8 * (2 * DY * work[0, 0] + asked)
    assert last["grad_g"] == last["hvp"] == work[0, 0]
    assert last["grad_f"] == last["jvp"] == 0


def test_lanes_count_their_own_and_do_not_overflow_32_bits(monkeypatch, worlds):
    """FedBiO with active clients and random steps; then sizes of 2³³ and calls of 2³² a participant."""
    keys, setting = [4, 5, 7], {"participation": rk.Bernoulli(0.5), "local_steps": rk.Steps(1, 4), "batch_size": 2}
    problem, clients, x0 = worlds["bilevel"]
    works = [work_of({**setting, "key": key}, clients) for key in keys]
    assert len({tuple(work[0]) for work in works}) == 3

    def run():
        return rk.solve_many(problem, rk.FedBiO(), clients, x0, jnp.zeros(DY), rounds=ROUNDS, every=2, keys=keys,
                             evaluate=nothing, **setting).history  # fmt: skip

    history = run()
    for lane, work in enumerate(works):
        expect(TABLE["FedBiO"], history.lane(lane).last, work)
    huge = Cost(True, down=2**33, up=2**40 + 1, calls={"hvp": (2**32, 2**33)}, local_steps=True)
    monkeypatch.setattr(PREPARE, "costs_of", lambda *_: [huge])
    history = run()
    for lane, ((participants, steps), _) in enumerate(works):
        last = history.lane(lane).last
        assert last["bytes_down"] == 2**33 * participants
        assert last["bytes_up"] == (2**40 + 1) * participants
        assert last["hvp"] == 2**32 * participants + 2**33 * steps


def test_activities_near_2_to_the_31(monkeypatch, worlds):
    much = 2**31 - 1
    monkeypatch.setattr(SIMULATOR, "advance", only_traced([[much, much], [0, 0]]))
    last = real(worlds, rk.FedBiO(), participation=2, key=4).history.last
    assert last["bytes_down"] == 8 * D * much
    assert last["grad_f"] == 2 * much
