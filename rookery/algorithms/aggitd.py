"""FBO-AggITD and its relatives: the hypergradient's recursion during the lower level's own exchanges.

P. Xiao and K. Ji, ICML 2023 (docs/bibliography.md). Only an abstract-level description was at hand: these are methods
of its type, defined here. Sums Σ are weighted (n/P)p_i over one set of participants, who keep x for the round.
"""

import operator
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Reply, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_optional, check_rates
from rookery.algorithms.steps import only, receive, svrg_steps, uniform_below
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors, X, Y


class FBOAggITD(Algorithm):
    """FBO-AggITD, a method of its type: z is computed during the N exchanges for y; N + 1 exchanges a round.

    Peiyao Xiao, Kaiyi Ji. Communication-efficient federated hypergradient computation via aggregated iterative
    differentiation. International Conference on Machine Learning (PMLR 202), pp. 38059–38086, 2023. Its box was not at
    hand: defined here.

    Bilevel, one lower level for all clients, strongly convex in y. With J uniform on 0..N−1, for s = 0, ..., N−1 (one
    exchange each), then one more:

        y^{s+1} = y^s − η_y Σ ∇_y g(x, y^s)
        z^J = Σ ∇_y f(x, y^J),   z^s = z^{s−1} − η_H Σ ∇²_yy g(x, y^s) z^{s−1} for s > J
        x ← x − γ_x Σ (∇_x f − N η_H ∇²_xy g z^{N−1}) at y^N

    At y^s = y*(x) the mean over J is a Neumann series of N terms. x and y are projected at the server.

    Args:
        gamma_x, eta_y: steps; no values published by the papers at hand ("grid search").
        neumann_step: η_H; the step η_y by default.
        inner: N.
    """

    name: ClassVar[str] = "FBO-AggITD"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FBO-AggITD"
    status: ClassVar[str] = "D"

    gamma_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    neumann_step: Any = None
    inner: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_rates(self, "gamma_x", "eta_y")
        check_optional(check_rates, self, "neumann_step")
        check_counts(self, "inner")

    def init(self, x: X, y: Y) -> Tree:
        """z holds the running vector of the round."""
        return {"x": x, "y": y, "z": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """x travels once, with the first exchange."""

        def phase(s0: int) -> tuple[Stage, ...]:
            return _one_of(s0, self.inner, _eta_h(self), partial(_take_step_y, self.eta_y), "direction")

        return *phase(0), *_again(self.inner, phase(1)), _end(self.gamma_x, self.inner, _eta_h(self))


class FBOAggITDSVRG(Algorithm):
    """FBO-AggITD with the SVRG steps of FedNest's FedInn for y; 2N + 1 exchanges a round.

    Peiyao Xiao, Kaiyi Ji. Communication-efficient federated hypergradient computation via aggregated iterative
    differentiation. International Conference on Machine Learning (PMLR 202), pp. 38059–38086, 2023. Its box was not at
    hand: defined here.

    Bilevel, one lower level for all clients, strongly convex in y. z and x are those of :class:`FBOAggITD`; in each of
    the N phases the gradients make the control variate of one more exchange:

        q = mean ∇_y g(x, y^s)
        y_i ← y_i − (η_y/τ_i)(∇_y g(x, y_i; ζ) − ∇_y g(x, y^s; ζ) + q), τ_i times from y^s;   y^{s+1} = mean y_i

    y_i is projected on Y before every local step. The arguments are those of :class:`FBOAggITD`.
    """

    name: ClassVar[str] = "FBO-AggITD_SVRG"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FBO-AggITD"
    status: ClassVar[str] = "D"

    gamma_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    neumann_step: Any = None
    inner: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_rates(self, "gamma_x", "eta_y")
        check_optional(check_rates, self, "neumann_step")
        check_counts(self, "inner")

    def init(self, x: X, y: Y) -> Tree:
        """z holds the running vector of the round; q is the control variate."""
        return {"x": x, "y": y, "z": jnp.zeros_like(y), "q": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """x travels once, with the first exchange."""

        def phase(s0: int) -> tuple[Stage, ...]:
            anchor = _one_of(s0, self.inner, _eta_h(self), self.anchor, "average", "q")
            return *anchor, Exchange(only("q"), partial(self.local_steps, s0), receive)

        return *phase(0), *_again(self.inner, phase(1)), _end(self.gamma_x, self.inner, _eta_h(self))

    def anchor(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """q = mean ∇_y g."""
        return {**server, "q": mean["q"]}

    def local_steps(self, s0: int, local: Local, down: Tree, carry: Tree) -> Vectors:
        """y_i after τ_i SVRG steps from y^s."""
        beta = at(self.eta_y, local.round) / local.tau
        return {"y": svrg_steps(local, s0 + local.index, carry["x"], carry["y"], down["q"], beta)}


class FBOITD(Algorithm):
    """FBO-ITD: the derivative of the last lower iterate by reverse mode, over exchanges; 2N + 1 exchanges a round.

    The exact reference for FBO-AggITD (Peiyao Xiao, Kaiyi Ji. Communication-efficient federated hypergradient
    computation via aggregated iterative differentiation. International Conference on Machine Learning (PMLR 202), pp.
    38059–38086, 2023); defined here.

    Bilevel, one lower level for all clients. N exchanges there, one to turn, N back on the batches of the way there:

        y^{s+1} = y^s − η_y Σ ∇_y g(x, y^s),   s = 0, ..., N−1
        h = ∇_x f(x, y^N),   a = Σ ∇_y f(x, y^N)
        h ← h − η_y ∇²_xy g(x, y^s) a,   a ← a − η_y Σ ∇²_yy g(x, y^s) a,   s = N−1, ..., 0;   x ← x − γ_x Σ h

    Participants remember the path y^0, ..., y^{N−1} and their own part of h. x and y are projected at the server.

    Args:
        gamma_x, eta_y: steps.
        inner: N.
    """

    name: ClassVar[str] = "FBO-ITD"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FBO-AggITD"
    status: ClassVar[str] = "D"

    gamma_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_rates(self, "gamma_x", "eta_y")
        check_counts(self, "inner")

    def init(self, x: X, y: Y) -> Tree:
        """z holds the a of the way back."""
        return {"x": x, "y": y, "z": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """There, turn, back; x travels once, with the first exchange."""
        step_y = partial(_take_step_y, self.eta_y)
        first = Exchange(only("x", "y"), self.begin, step_y, "direction")
        there = Exchange(only("y"), self.there, step_y, "direction")
        turn = Exchange(only("y"), self.turn, receive, "direction")
        back = Exchange(only("z"), self.back, self.step_z, "direction")
        last = Exchange(only("z"), self.end, partial(_take_x, self.gamma_x), "direction")
        return first, *_again(self.inner, (there,)), turn, *_again(self.inner, (back,)), last

    def begin(self, local: Local, down: Tree) -> Reply:
        """∇_y g at y^0."""
        path = jnp.zeros((self.inner, down["y"].size), down["y"].dtype)
        return self._remember(local, 0, down, {"x": down["x"], "path": path})

    def there(self, local: Local, down: Tree, carry: Tree) -> Reply:
        """∇_y g at y^s, s = 1, ..., N−1."""
        return self._remember(local, 1 + local.index, down, carry)

    def _remember(self, local: Local, s: Any, down: Tree, carry: Tree) -> Reply:
        up = {"y": local.g(s, "anchor").grad_y(carry["x"], down["y"])}
        return Reply(up, carry={**carry, "path": carry["path"].at[s].set(down["y"])})

    def turn(self, local: Local, down: Tree, carry: Tree) -> Reply:
        """a and h at y^N."""
        f_x, f_y = local.f(0, "x").grad(carry["x"], down["y"])
        return Reply({"z": f_y}, carry={**carry, "h": f_x})

    def back(self, local: Local, down: Tree, carry: Tree) -> Reply:
        """∇²_yy g a, and the client's own h, at y^s, s = N−1, ..., 1."""
        s = self.inner - 1 - local.index
        hess = local.g(s, "anchor").hess(carry["x"], carry["path"][s], down["z"])
        return Reply({"z": hess}, carry={**carry, "h": self._less(local, s, down, carry)})

    def end(self, local: Local, down: Tree, carry: Tree) -> Vectors:
        """h at y^0."""
        return {"x": self._less(local, 0, down, carry)}

    def _less(self, local: Local, s: Any, down: Tree, carry: Tree) -> Tree:
        """h − η_y ∇²_xy g(x, y^s) a."""
        cross = local.g(s, "anchor").cross(carry["x"], carry["path"][s], down["z"])
        return carry["h"] - at(self.eta_y, local.round) * cross

    def step_z(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """a − η_y Σ ∇²_yy g a."""
        return {**server, "z": server["z"] - at(self.eta_y, ctx.round) * mean["z"]}


# --- what the members share -------------------------------------------------------------------------------------------


def _one_of(s0: int, inner: int, eta_h: Any, take_y: Any, weighting_y: str, part: str = "y") -> tuple[Stage, ...]:
    """The exchange at y^s, s = s0 + index: of three kinds the round's J wants one.

    s < J: Σ ∇_y g;   s = J: also z = Σ ∇_y f;   s > J: also z ← z − η_H Σ ∇²_yy g z. ``take_y`` makes use of Σ ∇_y g,
    which is uploaded as ``part``: an average called y would be taken for what became of the y that was broadcast.
    """
    sent, weighting = ("x", "y") if s0 == 0 else ("y",), {part: weighting_y, "z": "direction"}

    def point(local: Local, down: Tree, carry: Tree) -> tuple[X, Y, Any]:
        return (down if s0 == 0 else carry)["x"], down["y"], s0 + local.index

    def slope(local: Local, down: Tree, carry: Tree) -> Reply:
        x, y, s = point(local, down, carry)
        return Reply({part: local.g(s, "anchor").grad_y(x, y)}, carry={"x": x, "y": y})

    def start(local: Local, down: Tree, carry: Tree) -> Reply:
        x, y, s = point(local, down, carry)
        return Reply(
            {part: local.g(s, "anchor").grad_y(x, y), "z": local.f(s, "z").grad_y(x, y)}, carry={"x": x, "y": y}
        )

    def product(local: Local, down: Tree, carry: Tree) -> Reply:
        x, y, s = point(local, down, carry)
        up = {part: local.g(s, "anchor").grad_y(x, y), "z": local.g(s, "z").hess(x, y, down["z"])}
        return Reply(up, carry={"x": x, "y": y})

    def take_start(ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**take_y(ctx, server, mean), "z": mean["z"]}

    def take_product(ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**take_y(ctx, server, mean), "z": server["z"] - at(eta_h, ctx.round) * mean["z"]}

    def where(compare: Any) -> Any:
        return lambda server, ctx: compare(s0 + ctx.index, uniform_below(ctx, "start", inner))

    before = Exchange(only(*sent), slope, take_y, weighting, when=where(operator.lt))
    at_start = Exchange(only(*sent), start, take_start, weighting, when=where(operator.eq))
    after = Exchange(only(*sent, "z"), product, take_product, weighting, when=where(operator.gt))
    return (before, at_start) if s0 == 0 else (before, at_start, after)  # nothing is after J at s = 0


def _again(inner: int, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The phases s = 1, ..., N−1."""
    return (Repeat(inner - 1, stages),) if inner > 1 else ()


def _end(gamma_x: Any, inner: int, eta_h: Any) -> Exchange:
    """x ← x − γ_x Σ (∇_x f − N η_H ∇²_xy g z) at y^N."""

    def client(local: Local, down: Tree, carry: Tree) -> Vectors:
        x, y, scale = carry["x"], down["y"], inner * at(eta_h, local.round)
        return {"x": local.f(0, "x").grad_x(x, y) - local.g(0, "x").cross(x, y, scale * down["z"])}

    return Exchange(only("y", "z"), client, partial(_take_x, gamma_x), "direction")


def _take_step_y(eta_y: Any, ctx: Context, server: Tree, mean: Tree) -> Tree:
    """Π_Y(y − η_y Σ ∇_y g)."""
    return {**server, "y": ctx.project_y(server["y"] - at(eta_y, ctx.round) * mean["y"])}


def _take_x(gamma_x: Any, ctx: Context, server: Tree, mean: Tree) -> Tree:
    """Π_X(x − γ_x Σ h)."""
    return {**server, "x": ctx.project_x(server["x"] - at(gamma_x, ctx.round) * mean["x"])}


def _eta_h(algorithm: Any) -> Any:
    """η_H; by default the step of y."""
    return algorithm.eta_y if algorithm.neumann_step is None else algorithm.neumann_step
