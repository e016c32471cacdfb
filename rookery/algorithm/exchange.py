"""What an algorithm is: a sequence of exchanges, written once as pure functions of vectors.

An :class:`Exchange` is the only thing that crosses between clients and server. The server broadcasts ``down(server)``;
every participant runs ``client(local, down)`` on its own data and uploads a dictionary of arrays; the server receives the
weighted mean of the uploads in ``server(ctx, server, mean)``. A round is a fixed sequence of stages: exchanges,
``Repeat(count, stages)`` and ``Server(fn)``.

The variables x and y are vectors here, whatever pytrees the user's losses take.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
from jax import Array

from rookery.algorithm.views import Context, Local
from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.typing import Tree, Weighting


class _Unchanged:
    """As it was."""

    def __repr__(self) -> str:
        return "unchanged"


UNCHANGED: Any = _Unchanged()


class Reply(NamedTuple):
    """What a participant makes of an exchange, where it is more than its upload.

    ``keep`` is what it keeps from round to round, ``carry`` what it hands to its next exchange of this round. What is not
    given stays as it was.
    """

    up: Tree
    keep: Tree = UNCHANGED
    carry: Tree = UNCHANGED


@dataclass(frozen=True)
class Exchange:
    """One trip: broadcast, work of the participants, weighted mean.

    down(server) -> dict                             what is broadcast, and all of it
    client(local, down) -> up                        up: a dictionary of arrays. A client that needs what it keeps between
                                                     rounds, or what it carries from exchange to exchange of one round,
                                                     names the parameters ``keep`` and ``carry``; one that changes them
                                                     returns ``Reply(up, keep=..., carry=...)``
    server(ctx, server, mean) -> server
    weighting                                        "average": p_i normalised over the participants;
                                                     "direction": (n/|C|)·p_i;
                                                     a function (server, ids) -> a_i: (n/|C|)·a_i;
                                                     "stack": no mean, one row a slot (``ctx.ids``, ``ctx.mask``);
                                                     or a dictionary of these by the parts of the upload.
                                                     An averaged part with the name of something broadcast is what became
                                                     of it: clips and attacks go by the way from there. A direction at x
                                                     is not to be called x
    draw                                             "round": the participants of the round; "fresh": new ones from
                                                     here on (their carry is void)
    when(server, ctx) -> bool                        skip the exchange where false; it then costs nothing
    private(server) -> dict                          what is sent to one participant each: arrays with a leading axis of
                                                     slots; a participant sees its row beside what is broadcast
    """

    down: Callable[[Tree], Tree]
    client: Callable[..., Tree | Reply]
    server: Callable[[Context, Tree, Tree], Tree]
    weighting: Weighting = "average"
    draw: Literal["round", "fresh"] = "round"
    when: Callable[[Tree, Context], Any] | None = None
    private: Callable[[Tree], Tree] | None = None
    _asks: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Which of ``keep`` and ``carry`` the client's parameters name."""

    def __post_init__(self) -> None:
        known = inspect.signature(self.client).parameters.values()
        named = [p.name for p in known if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        asks = tuple(name for name in named[2:] if name in ("keep", "carry"))
        if len(named) < 2 or {"keep", "carry"} & set(named[:2]) or len(asks) < len(named) - 2:
            raise TypeError(
                f"client must be a function of (local, down), which may also name keep and carry, got ({', '.join(named)})"
            )
        object.__setattr__(self, "_asks", asks)

    def work(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        """(up, keep, carry) of one participant."""
        held = {"keep": keep, "carry": carry}
        made = self.client(local, down, **{name: held[name] for name in self._asks})
        reply = made if isinstance(made, Reply) else Reply(made)
        return (
            reply.up,
            keep if reply.keep is UNCHANGED else reply.keep,
            carry if reply.carry is UNCHANGED else reply.carry,
        )


@dataclass(frozen=True)
class Repeat:
    """The same stages ``count`` times, as one compiled loop; ``local.index`` and ``ctx.index`` count the passes."""

    count: int
    stages: tuple["Stage", ...]


@dataclass(frozen=True)
class Server:
    """A stage of the server alone: ``fn(ctx, server) -> server``."""

    fn: Callable[[Context, Tree], Tree]


Stage = Exchange | Repeat | Server


def is_stacked(stage: Exchange, part: str) -> bool:
    """Whether the server receives a part of an upload row by row."""
    told = stage.weighting
    return part in told and told[part] == "stack" if isinstance(told, Mapping) else told == "stack"


def exchanges(stages: Sequence[Stage]) -> Iterator[Exchange]:
    """All exchanges in the text of a round."""
    for stage in stages:
        if isinstance(stage, Repeat):
            yield from exchanges(stage.stages)
        elif isinstance(stage, Exchange):
            yield stage


def parts_of(stage: Exchange) -> list[tuple[str | None, Any]]:
    """The weighting of each part of an upload; of all parts, if it is one for all."""
    told = stage.weighting
    return [(None, told)] if isinstance(told, str) or callable(told) else list(told.items())


def stacked_parts(stages: Sequence[Stage]) -> list[str]:
    """The parts of uploads that the server receives row by row; "upload" where it is all of one."""
    told = [each for stage in exchanges(stages) for each in parts_of(stage)]
    return sorted({part or "upload" for part, weighting in told if isinstance(weighting, str) and weighting == "stack"})


def count_stages(stages: tuple[Stage, ...]) -> int:
    """The number of steps in the text of a round (a loop's body once)."""
    return sum(count_stages(stage.stages) if isinstance(stage, Repeat) else 1 for stage in stages)


class Algorithm(eqx.Module):
    """Base class of all algorithms.

    Numeric fields (rates) are leaves: a grid of them runs in one compiled program. Counts and options are static fields.
    Class variables tell what the algorithm is for.
    """

    name: ClassVar[str] = ""
    """Its name in its paper."""
    solves: ClassVar[tuple[str, ...]]
    """The problem classes: "bilevel", "bilevel-local", "minimax", "weighting"."""
    paper: ClassVar[str] = ""
    status: ClassVar[str] = ""
    """How sure the update is: P read in the paper, C in public code, K from general knowledge, D defined here."""

    def init(self, x: Array, y: Array) -> Tree:
        """The server's state before round 0: a dictionary."""
        return {"x": x, "y": y}

    def keep(self, x: Array, y: Array) -> Tree:
        """What ONE client keeps between rounds, before its first; ``None`` if nothing."""
        return None

    def round(self) -> tuple[Stage, ...]:
        """The stages of a round."""
        raise NotImplementedError

    def output(self, server: Tree, keep: Tree) -> tuple[Array, Array]:
        """(x, y) of a state; with a lower level of each client's own, y has a leading axis of clients."""
        return server["x"], server["y"]

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """Raises ``ValueError`` or warns where the values cannot work for this problem. Called before compilation."""
