"""The metrics of a state."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np

from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.setting import State
from rookery.engines.base import Run, pick
from rookery.engines.homes import here, whole
from rookery.engines.sharded import losses_at_home
from rookery.problem.measures import Losses
from rookery.problem.problems import Flat
from rookery.solving.prepare import Prepared
from rookery.typing import Axes, Metrics


class Evaluation:
    """The metrics of a state, compiled where ``evaluate`` allows it.

    In several processes each computes them, and all take what the first one found.
    """

    def __init__(self, prepared: Prepared):
        run = self._run = prepared.run
        self._lanes = run.lanes
        self._axes = prepared.evaluate_axes
        self._at_home = prepared.evaluate is None and run.homes is not None
        self._flat, self._algorithm = run.setting.flat, run.setting.algorithm
        if not keeps_output(run):
            self._flat, self._algorithm = here((self._flat, self._algorithm))
        if prepared.evaluate is not None:
            self._evaluate = prepared.evaluate
        elif not run.setting.clients.here:
            self._evaluate = _nothing
        else:
            self._evaluate = Losses(self._flat.problem, run.setting.clients)
            if run.clients_axes is not None:
                self._axes = (None,) * len(jax.tree.leaves(self._flat.problem)) + run.clients_axes
        self._rows = run.setting.clients.n if run.homes is not None else None
        self._compiles = True

    def __call__(self, state: State) -> dict[str, Any]:
        """The metrics as Python numbers, or arrays over lanes."""
        found, group = self._found(state), self._run.group
        if group is None:
            return found
        told = group.exchange({name: np.asarray(value).tolist() for name, value in found.items()})[0]
        return {name: value if self._lanes is None else np.asarray(value) for name, value in told.items()}

    def _found(self, state: State) -> dict[str, Any]:
        if self._at_home:
            losses = losses_at_home(self._run, replace(state, round=None))
            return _numbers(losses, self._lanes)
        run = (self._algorithm, *_held(self._run, state))
        if self._compiles:
            try:
                found = _metrics(self._flat, self._rows, self._evaluate, self._axes, *run)
                return _numbers(found, self._lanes)
            except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
                self._compiles = False  # evaluate uses NumPy or Python's if: then it is called as it is
        run = whole(run)
        if self._axes is None:
            return _numbers(_by_hand(self._flat, self._rows, self._evaluate, *run), None)
        rows = []
        for lane in range(self._lanes or 0):
            one = pick(self._evaluate, self._axes, lane), *jax.tree.map(lambda leaf, lane=lane: leaf[lane], run)
            rows.append(_numbers(_by_hand(self._flat, self._rows, *one), None))
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def keeps_output(run: Run) -> bool:
    """Whether x and y are made of what clients keep, at their homes, and not of the server's state alone."""
    if run.homes is None:
        return False
    state = jax.eval_shape(run.initial_state)
    try:
        eqx.filter_eval_shape(run.setting.algorithm.output, state.server, None)
    except (TypeError, AttributeError, KeyError):
        return True
    return False


def _held(run: Run, state: State) -> tuple[Any, Any]:
    """The server's state and what clients keep: on one device, unless the output is made of what is on several."""
    if run.homes is None or keeps_output(run):
        return state.server, state.keep
    return here(state.server), None


def output_of(run: Run, state: State) -> tuple[Any, Any]:
    """(x, y) of a state as pytrees.

    A y of each client's own that is divided among processes has the rows that fill up its table: no layout fits without.
    """
    divided = run.homes is None or run.group is not None
    get = partial(_output, run.setting.flat, None if divided else run.setting.clients.n)
    server, keep = _held(run, state)
    algorithm = here(run.setting.algorithm) if keep is None and run.homes is not None else run.setting.algorithm
    return (get if run.lanes is None else eqx.filter_vmap(get))(algorithm, server, keep)


def _output(flat: Flat, rows: int | None, algorithm: Algorithm, server: Any, keep: Any) -> tuple[Any, Any]:
    """``rows`` of what clients keep are theirs, the others only fill up."""
    keep = keep if rows is None else jax.tree.map(lambda leaf: leaf[:rows], keep)
    x, y = algorithm.output(server, keep)
    return flat.x.unravel(x), jax.vmap(flat.y.unravel)(y) if y.ndim == 2 else flat.y.unravel(y)


def _by_hand(
    flat: Flat, rows: int | None, evaluate: Metrics, algorithm: Algorithm, server: Any, keep: Any
) -> dict[str, Any]:
    metrics = evaluate(*_output(flat, rows, algorithm, server, keep))
    if not isinstance(metrics, Mapping):
        raise TypeError(f"evaluate must return a dict of scalars, got {metrics!r}")
    return dict(metrics)


@eqx.filter_jit
def _metrics(
    flat: Flat, rows: int | None, evaluate: Metrics, axes: Axes | None, algorithm: Algorithm, server: Any, keep: Any
) -> dict[str, Any]:
    """One program for every run that uses the same ``evaluate``."""
    compute: Callable[..., dict[str, Any]] = partial(_by_hand, flat, rows)
    if axes is not None:
        lanes = jax.tree.unflatten(jax.tree.structure(evaluate), axes)
        compute = eqx.filter_vmap(compute, in_axes=(lanes, eqx.if_array(0), eqx.if_array(0), eqx.if_array(0)))
    return compute(evaluate, algorithm, server, keep)


def _numbers(metrics: Mapping[str, Any], lanes: int | None) -> dict[str, Any]:
    shape = () if lanes is None else (lanes,)
    values = {name: np.asarray(value) for name, value in metrics.items()}
    for name, value in values.items():
        if value.shape not in ((), shape):
            raise ValueError(f"evaluate must return scalars, got shape {value.shape} for {name!r}")
        values[name] = np.broadcast_to(value, shape)  # a constant is the same in all lanes
    return {name: value.item() if lanes is None else value for name, value in values.items()}


def _nothing(x: Any, y: Any) -> dict[str, Any]:
    """Metrics of a server that has nothing to compute them on."""
    return {}
