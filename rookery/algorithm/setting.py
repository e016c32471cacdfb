"""All that a run is (:class:`Setting`) and all that it has become (:class:`State`)."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rookery.aggregation.attacks import Attack
from rookery.aggregation.privacy import ClientPrivacy
from rookery.aggregation.robust import Rule
from rookery.algorithm.exchange import Algorithm, count_stages
from rookery.algorithm.views import Context, Local
from rookery.problem.clients import Clients
from rookery.problem.keys import PARTICIPANTS, fold
from rookery.problem.layout import Layout
from rookery.problem.oracles import Tally
from rookery.problem.participation import Participation, Steps
from rookery.problem.problems import ClientWeighting, Flat, Problem
from rookery.typing import Tree


@dataclass(frozen=True)
class Setting:
    """All that a run is, but for its state. Arrays in it are arguments of the compiled program."""

    flat: Flat
    algorithm: Algorithm
    clients: Clients
    participation: Participation
    steps: Steps
    batch_size: tuple[int | None, int | None]
    key: Array
    x0: Array
    aggregate: Rule | None = None
    """A robust rule in the place of the weighted mean."""
    attack: Attack | None = None
    privacy: ClientPrivacy | None = None

    def local(self, id: Any, round: Any, index: Any, last: Any, **more: Any) -> Local:
        """What participant ``id`` sees."""
        return Local(
            self.flat,
            self.clients,
            self.key,
            self.batch_size,
            self.steps,
            id=id,
            round=round,
            index=index,
            last=last,
            x0=self.x0,
            attack=self.attack,
            **more,
        )

    def context(self, round: Any, index: Any, ids: Array, mask: Array, tally: Tally | None = None) -> Context:
        """What the server sees."""
        return Context(
            self.flat,
            self.clients,
            self.key,
            self.batch_size,
            self.steps,
            round=round,
            index=index,
            ids=ids,
            mask=mask,
            expected=None if self.privacy is None else self.participation.expected(self.clients.n),
            tally=tally,
        )

    def participants(self, round: Any, fresh: Any) -> tuple[Array, Array]:
        """(ids, mask) of a round's draw number ``fresh``."""
        return self.participation.draw(fold(self.key, PARTICIPANTS, round, fresh), self.clients.n, round, fresh)


jax.tree_util.register_dataclass(
    Setting,
    data_fields=[
        "flat",
        "algorithm",
        "clients",
        "participation",
        "steps",
        "key",
        "x0",
        "aggregate",
        "attack",
        "privacy",
    ],
    meta_fields=["batch_size"],
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """All that a run needs to go on: what the server holds and what each client keeps, after ``round`` rounds."""

    round: Any
    server: Tree
    keep: Tree
    last: Array
    """The last round in which each client was counted, −1 if never."""
    died: Array
    """−1, or the round in which a number was first not finite; the state is then that before this round."""
    clips: Array | None = None
    """With a clip that adapts itself, that of each stage and part of an upload."""


def initial_state(setting: Setting, x: Array, y: Array, rows: int | None = None) -> State:
    """The state before round 0, with tables of as many rows as there are clients, or more."""
    n = setting.clients.n if rows is None else rows
    keep = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n, *jnp.shape(leaf))), setting.algorithm.keep(x, y))
    server = jax.tree.map(jnp.copy, setting.algorithm.init(x, y))  # y, z and θ may be one array; states are donated
    stages = count_stages(setting.algorithm.round())
    clips = None if setting.privacy is None else setting.privacy.first_clips(stages, x.dtype)
    return State(0, server, keep, jnp.full(n, -1, jnp.int32), jnp.int32(-1), clips)


def start_of_x(problem: Problem, x0: Tree, y0: Tree, n: int) -> Tree:
    """x0; of client weighting, where none is given, equal weights of the n clients."""
    if x0 is None and isinstance(problem, ClientWeighting):
        return jnp.full(n, 1 / n, Layout.of(y0, "y0").dtype)
    return x0


def flat_problem(problem: Problem, x0: Tree, y0: Tree, n: int) -> tuple[Flat, Tree]:
    """The problem over vectors, and where it starts in x."""
    x0 = start_of_x(problem, x0, y0, n)
    flat = Flat(problem, Layout.of(x0, "x0"), Layout.of(y0, "y0"))
    if flat.x.dtype != flat.y.dtype:
        raise ValueError(f"y0 must have the dtype of x0 ({flat.x.dtype}), got {flat.y.dtype}")
    return flat, x0


def with_dtype(algorithm: Algorithm, dtype: Any) -> Algorithm:
    """Rates as arrays of the variables' dtype, so that another value is not another program."""

    def cast(path: Any, leaf: Any) -> Array:
        if isinstance(leaf, bool | str) or not eqx.is_array_like(leaf):
            field = jax.tree_util.keystr(path)
            raise TypeError(f"{type(algorithm).__name__}{field} must be a number or a schedule, got {leaf!r}")
        return jnp.asarray(leaf, dtype)

    ready: Algorithm = jax.tree_util.tree_map_with_path(cast, algorithm)
    return ready
