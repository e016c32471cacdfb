"""The rounds of a run: evaluation, history, progress, checkpoints. It knows a session, and not what is behind it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.algorithm.cost import Cost
from rookery.algorithm.setting import State
from rookery.engines.base import Divergence, Run, Stopped
from rookery.engines.homes import without_fill
from rookery.problem.oracles import UNITS
from rookery.problem.validation import check_count
from rookery.processes import Group
from rookery.solving.best import Best, begun, improved
from rookery.solving.evaluate import Evaluation, output_of
from rookery.solving.history import History
from rookery.solving.prepare import Prepared
from rookery.solving.progress import Pace, progress_bar
from rookery.solving.remarks import remarks_of
from rookery.solving.solution import Diverged, Solution, stopped_in
from rookery.solving.spending import Spending, Spent, account_of, counted

Watch = Callable[[State, History], None]
Remember = Callable[[State, History, dict[str, Any], Best | None], None]


def make_rounds(
    prepared: Prepared,
    rounds: int,
    every: int | None = None,
    progress: bool | None = None,
    start: Solution | State | None = None,
    watch: Watch | None = None,
    memory: Mapping[str, Any] | None = None,
    remember: Remember | None = None,
) -> Solution:
    """Makes the rounds. ``watch`` is called after each evaluation; it must not hold on to the state.

    ``remember`` is called after each evaluation and between them, whenever the session hands back a state, with what is
    needed beside state and history to go on from there: the ``memory`` of a later call, whose entry ``session`` is the
    session's own, and the best iterate so far, which a later ``start`` has.
    """
    check_count(rounds, "rounds")
    every = max(1, rounds // 20) if every is None else check_count(every, "every")
    run, evaluate, account = prepared.run, Evaluation(prepared), account_of(prepared.run)
    history = History(start.history.rows if isinstance(start, Solution) else None)
    if start is None:
        state = run.initial_state()
        first = evaluate(state)
        spent = {} if account is None else {"epsilon": 0.0}
        history.append({"round": 0, **counters(run.lanes), "seconds": 0.0, **spent, **first})
        best = _judged(prepared, state, first)
    else:
        state = run.take(_continued(run, start))
        best = start.best if isinstance(start, Solution) else None
        if prepared.metric is None:
            best = None
        elif best is None or (best.metric, best.higher_is_better) != (prepared.metric, prepared.higher_is_better):
            best = _judged(prepared, state, evaluate(state))  # nobody has looked for it: it begins here
    end = int(state.round) + rounds
    if run.group is not None:
        _check_same(run.group, {"rounds": end, "start": int(state.round), "every": every, "metric": prepared.metric})
    before = history.rows[-1] if history.rows else None
    seconds = before["seconds"] if before is not None else 0.0
    activity: Any = 0
    own = None
    if memory is not None:
        activity, seconds = np.asarray(memory["activity"], np.int64), memory["seconds"]
        own = memory["session"]
    purse = None if account is None else _Purse(account, _booked(account, start, memory))

    def note(state: State, own: Mapping[str, Any] | None) -> None:
        if remember is not None:
            now = {"activity": np.asarray(activity).tolist(), "seconds": seconds}
            if purse is not None:
                now["executions"] = purse.executions.tolist()
            remember(state, history, {**now, "session": None if own is None else dict(own)}, best)

    def failed(active: Any) -> bool:
        assert purse is not None
        purse.pay_failed(active)
        own = dict(session.memory() or {})
        own.pop("record", None)  # that of the round before was noted with it
        note(state, own)
        return not purse.is_empty

    opened = prepared.engine.open(replace(run, start=state, memory=own, failed=None if purse is None else failed))
    with opened as session, progress_bar(run, rounds, progress) as show:
        pace = Pace(session.stride, run.group)

        def goes_on(state: State, stop: int) -> bool:
            return state.round < stop and not bool((np.asarray(state.died) >= 0).all())

        while goes_on(state, end) and not (purse is not None and purse.is_empty):
            stop = min(end, (state.round // every + 1) * every)
            while goes_on(state, stop) and not (purse is not None and purse.is_empty):
                made = min(stop - state.round, pace.rounds)
                if purse is not None and purse.left is not None:
                    made = min(made, purse.left)
                with pace:
                    state, active = session.advance(state, made)
                    active = np.asarray(jax.block_until_ready(active), np.int64)
                    activity = activity + active
                if purse is not None:
                    purse.pay(active)
                seconds += pace.seconds
                show(made, made / pace.seconds, None)
                if goes_on(state, stop):  # else it is evaluated first
                    note(state, session.memory())
            state = session.gather(state, final=state.round == end)
            metrics = evaluate(state)
            if best is not None:
                best = improved(best, metrics.get(best.metric, np.nan), _rounds(state), partial(output_of, run, state))
            costs = counters(run.lanes, session.costs, activity, before)
            spent = {} if purse is None else {"epsilon": purse.epsilon}
            before = {"round": state.round, **costs, "seconds": seconds, **spent, **metrics}
            history.append(before)
            show(0, None, metrics)
            if watch is not None:
                watch(state, history)
            activity = 0 * activity
            note(state, session.memory())
    solution = finished(prepared, state, history, best, None if purse is None else purse.spent)
    if purse is not None and purse.is_empty and state.round < end:
        remark = (
            f"stopped after round {state.round} of {end}, with epsilon = {purse.epsilon:g} spent: one more could spend "
            f"more than epsilon = {purse.allowed:g}"
        )
        solution = replace(solution, remarks=(*solution.remarks, remark))
    return solution


class _Purse:
    """What a private run may still spend."""

    def __init__(self, account: Spending, executions: Any):
        self._account = account
        self._failed: Any = 0
        self.executions: np.ndarray = executions
        self.allowed = account.epsilon_allowed or 0.0
        self.left = account.left(executions)
        if self.is_empty and not executions.any():
            raise ValueError(
                f"privacy: epsilon = {self.allowed:g} is spent before the first round is over: give more noise, or none "
                "(noise=None finds the least that lasts)"
            )

    @property
    def is_empty(self) -> bool:
        """Whether not one more round can be made."""
        return self.left == 0

    @property
    def epsilon(self) -> float:
        """What is spent."""
        return self._account.epsilon(self.executions)

    @property
    def spent(self) -> Spent:
        """The same, for a run that goes on from here."""
        return self._account.spent(self.executions)

    def pay_failed(self, activity: Any) -> None:
        """For an attempt that came to nothing: its sums were seen, and the next one's have other noise."""
        made = counted(activity)
        self._failed = self._failed + made
        self._take(made)

    def pay(self, activity: np.ndarray) -> None:
        """For rounds, with the attempts at them that failed, which are paid for already."""
        self._take(counted(activity) - self._failed)
        self._failed = 0

    def _take(self, made: np.ndarray) -> None:
        self.executions = self.executions + made
        self.left = self._account.left(self.executions)


def _booked(account: Spending, start: Solution | State | None, memory: Mapping[str, Any] | None) -> np.ndarray:
    """What was executed before this start, as it was booked then."""
    if memory is not None:
        return np.asarray(memory["executions"], np.int64)
    if isinstance(start, Solution) and start.spent is not None:
        return account.executions_of(start.spent)
    if isinstance(start, Solution) and start.rounds > 0:
        raise ValueError(
            "privacy: start has made rounds without it, which nobody can count; leave out start or privacy"
        )
    if isinstance(start, State) and int(start.round) > 0:
        raise ValueError(
            f"privacy: start must be a solution, which says what was spent, got the state of round {int(start.round)} alone"
        )
    return account.at_most(0)


def finished(
    prepared: Prepared, state: State, history: History, best: Best | None = None, spent: Spent | None = None
) -> Solution:
    """The solution that a state is: x, y, the best, what diverged and what there is to remark."""
    run = prepared.run
    if run.lanes is None and int(state.died) >= 0:
        state = replace(state, round=int(state.died))  # where its iterates are
    x, y = output_of(run, state)
    if run.homes is not None and run.group is None:  # a state is the same, wherever it was made
        keep, last = without_fill((state.keep, state.last), run.homes, run.lanes is not None)
        state = replace(state, keep=keep, last=last)

    def why(state: State, stopped: Stopped) -> Divergence:
        found = prepared.engine.diagnose(run, state, stopped)
        if found is not None:
            return found
        advice = "try smaller rates, and look for NaN in the clients' data"
        return Divergence(stopped.round, None, None, None, "the server's state", advice, stopped.lane)

    stopped = stopped_in(state, run.lanes)
    remarks: tuple[str, ...] = ()
    if prepared.metric is not None:
        kept = None if best is None else best.round
        remarks = remarks_of(history, prepared.metric, prepared.higher_is_better, run.lanes, stopped, kept)
    best = None if best is None else best.on_device()
    found = Solution(x, y, history, state, run.lanes, stopped, why if stopped else None, best, remarks)
    return replace(found, spent=spent)


def _check_same(group: Group, numbers: Mapping[str, Any]) -> None:
    """Processes that make other rounds than the first would wait for it for ever."""
    for number, told in enumerate(group.exchange(dict(numbers))):
        for name, value in told.items():
            if value != (first := numbers[name]) or type(value) is not type(first):
                who = f"process {number} has {value}, process {group.number} has {first}"
                raise ValueError(f"{name}: all processes must be given the same, {who}")


def _judged(prepared: Prepared, state: State, metrics: Mapping[str, Any]) -> Best | None:
    """The iterate that a run begins with, as the best so far; None if no metric was named."""
    name = prepared.metric
    if name is None:
        return None
    check_metric(name, metrics)
    return begun(name, prepared.higher_is_better, metrics[name], _rounds(state), output_of(prepared.run, state))


def check_metric(name: str, metrics: Mapping[str, Any]) -> None:
    """The metric is one that there is."""
    if name not in metrics:
        there = ", ".join(metrics) or "nothing"
        raise ValueError(f"metric must be one of what evaluate returns ({there}), got {name!r}")


def _rounds(state: State) -> np.ndarray:
    """Of which round the iterates are: those of a lane that diverged are of the round that it was stopped in."""
    died = np.asarray(state.died)
    return np.where(died >= 0, died, state.round)


def or_diverged(solution: Solution) -> Solution:
    """The solution of a single run, if it did not diverge."""
    if solution.diverged:
        raise Diverged(solution.why(), solution)
    return solution


def _continued(run: Run, start: Any) -> State:
    """The state to go on from, if it is one of such a run."""
    state = start.state if isinstance(start, Solution) else start
    if not isinstance(state, State):
        raise TypeError(f"start must be a solution or its state, got {start!r}")
    mine, theirs = (_shapes(each, run) for each in (jax.eval_shape(run.initial_state), state))
    if mine != theirs:
        raise ValueError(
            f"start must be of the same algorithm, problem, clients and lanes: it holds {theirs}, this run {mine}"
        )
    return state


def _shapes(state: State, run: Run) -> dict[str, Any]:
    """Shapes and dtypes; tables of clients have n rows, however many fill them up where they live."""
    n, axis = run.setting.clients.n, 0 if run.lanes is None else 1

    def told(leaf: Any) -> tuple[tuple[int, ...], Any]:
        return jnp.shape(leaf), jnp.result_type(leaf)

    def by_client(leaf: Any) -> tuple[tuple[int, ...], Any]:
        shape = list(jnp.shape(leaf))
        if run.homes is not None and shape[axis : axis + 1] == [run.homes.rows]:
            shape[axis] = n
        return tuple(shape), jnp.result_type(leaf)

    shared = jax.tree.map(told, {"server": state.server, "died": state.died, "clips": state.clips})
    return {**shared, **jax.tree.map(by_client, {"keep": state.keep, "last": state.last})}


def counters(
    lanes: int | None, costs: Sequence[Cost] = (), activity: Any = None, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The counters of a row of the history, from those of the row before and how active each stage was since.

    In Python integers, since sizes times activity overflow 32 bits.
    """
    shape = () if lanes is None else (lanes,)
    names = ("exchanges", "bytes_down", "bytes_up", *UNITS)
    row = {name: np.zeros(shape, np.int64) if before is None else np.array(before[name]) for name in names}
    for number, cost in enumerate(costs):
        done = activity[..., number, :, :]
        row["exchanges"] = row["exchanges"] + cost.exchange * done[..., 0, 0]
        row["bytes_down"] = row["bytes_down"] + cost.down * done[..., 0, 1]
        row["bytes_up"] = row["bytes_up"] + cost.up * done[..., 0, 1]
        for calls, when in ((cost.calls, 0), (cost.start_calls, 1)):
            for unit, (once, each) in calls.items():
                row[unit] = row[unit] + once * done[..., when, 1] + each * done[..., when, 2]
        for unit, (once, _) in cost.server_calls.items():
            row[unit] = row[unit] + once * done[..., 0, 0]
    return row if lanes is not None else {name: int(value) for name, value in row.items()}
