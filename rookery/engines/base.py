"""What an engine is: something that opens a session for a run, in which the rounds are made.

The loop that counts rounds, evaluates, writes the history and stores checkpoints (``rookery.solving.loop``) knows a
:class:`Session` and not what is behind it, so a new engine is one class that says how rounds are made.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from rookery import processes
from rookery.algorithm.cost import Cost
from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.setting import Setting, State, initial_state
from rookery.engines.homes import Homes, initial_at_home, take_state
from rookery.typing import Axes, Tree

Activity = Int[Array | np.ndarray, "*lanes stages 2 3"]
"""How active each stage of a round was, summed over rounds: (executions, participants, local steps of all participants),
over all rounds and once more over round 0 alone."""


@dataclass(frozen=True)
class Run:
    """A run, checked and ready: all that an engine needs.

    With ``lanes``, the arrays of the algorithm, the key and x and y have a leading axis of lanes, and ``clients_axes`` says
    which leaves of the clients do.
    """

    setting: Setting
    x: Array
    y: Array
    costs: tuple[Cost, ...] | None
    """What each stage of a round costs; None if the clients' data are elsewhere, where alone it can be found out."""
    lanes: int | None = None
    clients_axes: Axes | None = None
    shown: bool = False
    """Whether it can be seen, there or in the server's state, who takes part: then privacy gains nothing from chance."""
    homes: Homes | None = None
    """Where clients live, if that is on several devices: then their data and what they keep are there too."""
    start: State | None = None
    """The state that the rounds start from; None: the one before round 0."""
    memory: Mapping[str, Any] | None = None
    """What the session that this one continues returned from ``memory()``."""
    failed: Callable[[Activity], bool] | None = None
    """Called after an attempt at a round that came to nothing, with what it made: whether another may be made."""

    @property
    def group(self) -> processes.Group | None:
        """The processes that make this run together; None if it is this one alone."""
        return processes.current() if self.homes is not None and self.homes.several else None

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that shows, and writes what is not its own clients'."""
        return self.group is None or self.group.number == 0

    def take(self, state: State) -> State:
        """A copy of a state, of whatever engine, where this run has it."""
        return take_state(state, self.homes, self.lanes is not None)

    def initial_state(self) -> State:
        """The state before round 0."""
        if self.homes is not None:
            return initial_at_home(self.setting, self.x, self.y, self.lanes, self.homes)
        if self.lanes is None:
            return initial_state(self.setting, self.x, self.y)
        alone = [self.lane(lane) for lane in range(self.lanes)]
        states = [replace(initial_state(each.setting, each.x, each.y), round=None) for each in alone]
        stacked: State = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        return replace(stacked, round=0)

    def lane(self, lane: int) -> "Run":
        """The run of one lane alone, from the start."""
        if self.lanes is None:
            return self

        def of_lane(tree: Tree) -> Tree:
            return jax.tree.map(lambda leaf: leaf[lane] if eqx.is_array(leaf) else leaf, tree)

        setting = replace(
            self.setting,
            algorithm=of_lane(self.setting.algorithm),
            clients=pick(self.setting.clients, self.clients_axes or (), lane),
            key=self.setting.key[lane],
            x0=self.setting.x0[lane],
        )
        return Run(setting, self.x[lane], self.y[lane], self.costs, homes=self.homes)


def kept_by(algorithm: Algorithm, x: Array, y: Array) -> bool:
    """Whether clients keep anything from round to round."""
    return bool(jax.tree.leaves(jax.eval_shape(algorithm.keep, x, y)))


def pick(tree: Tree, axes: Axes, lane: int) -> Tree:
    """One lane of a tree of which some leaves have an axis of lanes."""
    leaves, structure = jax.tree.flatten(tree)
    picked = [leaf if axis is None else leaf[lane] for axis, leaf in zip(axes, leaves, strict=True)]
    return jax.tree.unflatten(structure, picked)


@dataclass(frozen=True)
class Stopped:
    """A run (or a lane) that met a number that is not finite in ``round``, and was stopped there."""

    round: int
    lane: int | None = None

    def __str__(self) -> str:
        return f"{_of_lane(self.lane)}not finite in round {self.round}"


@dataclass(frozen=True)
class Divergence:
    """Why a run was stopped: where its first number was that is not finite, and what to do about it.

    ``exchange``, ``client``, ``step`` and ``variable`` name the first upload that held it; ``client`` is None if it was
    the server's own step, ``step`` is None if it did not arise in the local loop.
    """

    round: int
    exchange: int | None
    client: int | None
    step: int | None
    variable: str
    advice: str
    lane: int | None = None

    def __str__(self) -> str:
        where = "the server's step" if self.client is None else f"the upload of client {self.client}"
        step = "" if self.step is None else f", local step {self.step}"
        number = "" if self.exchange is None else f", exchange {self.exchange}"
        place = f"round {self.round}{number}, in {where}{step}"
        return f"{_of_lane(self.lane)}{self.variable} is not finite in {place}; {self.advice}"


def _of_lane(lane: int | None) -> str:
    return "" if lane is None else f"lane {lane}: "


class Session(Protocol):
    """What makes the rounds of one run, while it is open."""

    @property
    def costs(self) -> Sequence[Cost]:
        """What each stage of a round costs: traced here, or told by nodes."""

    @property
    def stride(self) -> int | None:
        """How many rounds a call of ``advance`` should make; None: as many as last about a second."""

    def advance(self, state: State, rounds: int) -> tuple[State, Activity]:
        """``rounds`` more rounds: the new state, and how active each stage was. The old state may be consumed."""

    def gather(self, state: State, final: bool) -> State:
        """The state with what clients keep, where that is not here; ``final`` at the end of the run."""

    def memory(self) -> Mapping[str, Any] | None:
        """What a later session needs beside the state, as JSON can hold it; None if nothing.

        If it is not None, it belongs to the state after this very round, so a run's folder stores it after each call of
        ``advance``. An entry ``record`` is a line about the last round for the folder's ``participants.jsonl``.
        """


class EngineError(ConnectionError):
    """Rounds cannot be made for now, and the run can be resumed. It is raised with one line that says why."""


class Engine:
    """Base class of all engines: frozen values that say how rounds are made. ``rk.Simulator()``, ``rk.Flower(...)``."""

    batches: ClassVar[bool] = False
    """Whether it makes several runs at once, as lanes (``run.lanes``)."""
    shows_participants: ClassVar[bool] = False
    """Whether others than the server can know who takes part in a round."""
    noise_from_key: ClassVar[bool] = True
    """Whether the noise of private rounds is made from the run's key."""

    def open(self, run: Run) -> AbstractContextManager[Session]:
        """A session for this run."""
        raise NotImplementedError

    def check(self, run: Run) -> None:
        """Raises ``ValueError`` where this engine cannot make such a run. Called before a round is compiled."""

    def place(self, run: Run) -> Run:
        """The run with its arrays where this engine computes; it has passed :meth:`check`."""
        return run

    def in_folder(self, folder: Path) -> "Engine":
        """The engine as it works for a run that is stored in this folder."""
        return self

    def diagnose(self, run: Run, state: State, stopped: Stopped) -> Divergence | None:
        """Why a run, or a lane, that ended in ``state`` was stopped; None if it cannot be found out here.

        Called only when somebody asks.
        """
        return None
