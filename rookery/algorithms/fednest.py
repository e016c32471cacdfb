"""FedNest and its relatives: nested loops of exchanges, FedInn for y, FedIHGP for z and FedOut for x."""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Stage
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_rates, require
from rookery.algorithms.steps import local_hypergradient, only
from rookery.problem.keys import Stream
from rookery.problem.schedules import at
from rookery.typing import Tree


class Nested(Algorithm):
    """What the family shares: FedInn, ``inner`` averages of local steps on y, and FedOut, one average of steps on x.

    A point is projected on its set before every local step, so that no gradient is taken outside; what the last step makes
    of it is averaged as it is, and the server projects the average. Scratch vectors (q, h, ...) lie in the server's state;
    they mean nothing between rounds.
    """

    eta_x: Any = 0.1
    eta_y: Any = 0.1
    inner: int = eqx.field(static=True, default=1)
    outer_steps: int = eqx.field(static=True, default=1)
    divide_steps: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y")
        check_counts(self, "inner")
        check_counts(self, "outer_steps")

    def init(self, x: Array, y: Array) -> Tree:
        """The anchors q and h start at 0."""
        return {"x": x, "y": y, "q": jnp.zeros_like(y), "h": jnp.zeros_like(x)}

    def _inn(self) -> Stage:
        """FedInn with the control variate q: two exchanges with the same fresh participants, ``inner`` times."""
        anchor = Exchange(only("x", "y"), self._anchor, _receive, draw="fresh")
        return Repeat(self.inner, (anchor, Exchange(only("q"), self._svrg, _receive)))

    def _inn_sgd(self) -> Stage:
        """FedInn by plain local steps: one exchange, ``inner`` times."""
        return Repeat(self.inner, (Exchange(only("x", "y"), self._sgd, _receive, draw="fresh"),))

    def _out(self) -> Stage:
        """FedOut: one exchange, with the participants that know x and y."""
        return Exchange(only("h"), self._outer, _receive)

    def _beta(self, local: Local) -> Any:
        return at(self.eta_y, local.round) / (local.tau if self.divide_steps else 1)

    def _alpha(self, local: Local) -> Any:
        return at(self.eta_x, local.round) / (self.outer_steps if self.divide_steps else 1)

    def _anchor(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return {"q": local.g(local.index, "anchor").grad_y(down["x"], down["y"])}, keep, down

    def _svrg(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        y = svrg_steps(local, local.index, carry["x"], carry["y"], down["q"], self._beta(local))
        return {"y": y}, keep, carry

    def _sgd(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return {"y": sgd_steps(local, local.index, down["x"], down["y"], self._beta(local))}, keep, carry

    def _outer(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        x, y, h, alpha = carry["x"], carry["y"], down["h"], self._alpha(local)

        def step(k: Any, x_i: Array) -> Array:
            f, x_i = local.f(k, "outer"), local.project_x(x_i)
            return x_i - alpha * (f.grad_x(x_i, y) - f.grad_x(x, y) + h)

        return {"x": local.repeat(self.outer_steps, step, x)}, keep, carry

    def _local_outer(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        """FedOut by plain local steps along what ``_own`` gives."""
        y, alpha = down["y"], self._alpha(local)

        def step(k: Any, x: Array) -> Array:
            x = local.project_x(x)
            return x - alpha * self._own(local, k, x, y)

        return {"x": local.repeat(self.outer_steps, step, down["x"])}, keep, carry

    def _own(self, local: Local, k: Any, x: Array, y: Array) -> Array:
        """The client's own direction for x."""
        raise NotImplementedError


def svrg_steps(local: Local, number: Any, x: Array, y: Array, q: Array, beta: Any) -> Array:
    """y_i ← y_i − β(∇_y g(x, y_i; ζ) − ∇_y g(x, y; ζ) + q), τ_i times from y; ``number`` counts such loops of a round."""

    def step(k: Any, y_i: Array) -> Array:
        g, y_i = local.g(number * local.max_tau + k, "y"), local.project_y(y_i)
        return y_i - beta * (g.grad_y(x, y_i) - g.grad_y(x, y) + q)

    return local.loop(step, y)


def sgd_steps(local: Local, number: Any, x: Array, y: Array, beta: Any) -> Array:
    """y_i ← y_i − β ∇_y g(x, y_i; ζ), τ_i times from y."""

    def step(k: Any, y_i: Array) -> Array:
        y_i = local.project_y(y_i)
        return y_i - beta * local.g(number * local.max_tau + k, "y").grad_y(x, y_i)

    return local.loop(step, y)


def _receive(ctx: Context, server: Tree, mean: Tree) -> Tree:
    """The server takes the means; x and y are projected if they are constrained."""
    project = {"x": ctx.project_x, "y": ctx.project_y}
    return {**server, **{name: project[name](each) if name in project else each for name, each in mean.items()}}


class FedNest(Nested):
    """FedNest: SVRG steps on y, a Neumann series over exchanges for z, SVRG steps on x; 2T + N + 3 exchanges a round.

    T times, with fresh participants and q their mean of ∇_y g(x, y), then once with fresh participants, all means:

        y_i ← y_i − β_i (∇_y g(x, y_i; ζ) − ∇_y g(x, y; ζ) + q), τ_i times;   y ← mean y_i
        a_0 = mean ∇_y f,   a_j = mean (a_{j−1} − η_H ∇²_yy g a_{j−1}),       z = η_H (a_0 + ... + a_N)
        h = mean (∇_x f − ∇²_xy g z);   x_i ← x_i − α_i (∇_x f(x_i, y; ξ) − ∇_x f(x, y; ξ) + h);   x ← mean x_i

    Args:
        eta_x, eta_y: α and β.
        inner: T.
        outer_steps: local steps on x.
        divide_steps: α_i = α/outer_steps and β_i = β/τ_i, as in the paper; else (the authors' code) α and β.
        neumann_step: η_H; the step α by default.
        products: N, Hessian-vector products.
        neumann: "full": the series above; "random": the paper's single term, z = N η_H a_{N'} with N' uniform on 0..N−1.
        code_series: the series of the authors' code, a_0 + Σ_j (1/j) mean (I − η_H ∇²_yy g_i)^j a_0, times η_H.
    """

    name: ClassVar[str] = "FedNest"

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "K, C"

    neumann_step: Any = None
    products: int = eqx.field(static=True, default=5)
    neumann: Literal["full", "random"] = eqx.field(static=True, default="full")
    code_series: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        _check_neumann_step(self)
        require(self.neumann in ("full", "random"), self, "neumann", self.neumann, "'full' or 'random'")
        check_counts(self, "products", least=1 if self.neumann == "random" else 0)
        require(not self.code_series or self.neumann == "full", self, "code_series", True, "False if neumann='random'")

    def init(self, x: Array, y: Array) -> Tree:
        """Also the running term a and the sum z."""
        return {**super().init(x, y), "a": jnp.zeros_like(y), "z": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """FedInn; FedIHGP and FedOut with one set of participants."""
        return self._inn(), *self._ihgp(), Exchange(only("z"), self._hypergradient, _receive), self._out()

    def _ihgp(self) -> tuple[Stage, ...]:
        first = Exchange(only("x", "y"), self._first, self._take_first, draw="fresh")
        if self.neumann == "random":  # at most N − 1 products
            hops = Repeat(self.products - 1, (Exchange(only("a"), self._hop, self._take_hop, when=self._wanted),))
        else:
            hops = Repeat(self.products, (Exchange(only("a"), self._hop, self._take_hop),))
        return (first, hops) if hops.count else (first,)

    def _wanted(self, server: Tree, ctx: Context) -> Any:
        """Whether the hop j = index + 1 is one of the N'."""
        return ctx.index < uniform_below(ctx, "neumann", self.products)

    def _first(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        a = local.f(0, "z").grad_y(down["x"], down["y"])
        return {"a": a}, keep, {**down, "power": a} if self.code_series else down

    def _take_first(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """a_0 with all factors of the series."""
        a = mean["a"] * _neumann_step(self, ctx.round) * (self.products if self.neumann == "random" else 1)
        return {**server, "a": a, "z": a}

    def _hop(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        a = down["a"]
        if self.code_series:  # after the common start every client goes on with its own power
            a = jnp.where(local.index == 0, a, carry["power"])
        hess = local.g(local.index + 1, "z").hess(carry["x"], carry["y"], a)
        a = a - _neumann_step(self, local.round) * hess
        return {"a": a}, keep, {**carry, "power": a} if self.code_series else carry

    def _take_hop(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        a = mean["a"]
        if self.neumann == "random":
            return {**server, "a": a, "z": a}
        return {**server, "a": a, "z": server["z"] + (a / (ctx.index + 1) if self.code_series else a)}

    def _hypergradient(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        x, y = carry["x"], carry["y"]
        return {"h": local.f(0, "x").grad_x(x, y) - local.g(0, "x").cross(x, y, down["z"])}, keep, carry


def uniform_below(ctx: Context, name: str, count: int) -> Array:
    """A number of the round, uniform on 0..count−1: the same whenever it is asked for."""
    return Stream(ctx.key(name)).integers(1, count, 0, name)[0]


def _neumann_step(algorithm: Any, t: Any) -> Any:
    """η_H in round t; by default the step of x."""
    return at(algorithm.eta_x if algorithm.neumann_step is None else algorithm.neumann_step, t)


def _check_neumann_step(algorithm: Any) -> None:
    if algorithm.neumann_step is not None:
        check_rates(algorithm, "neumann_step")


class FedNestSGD(FedNest):
    """FedNest with plain local SGD on y, y_i ← y_i − β_i ∇_y g(x, y_i; ζ): T + N + 3 exchanges a round.

    The arguments are those of :class:`FedNest`.
    """

    name: ClassVar[str] = "FedNest_SGD"

    def init(self, x: Array, y: Array) -> Tree:
        """No anchor q."""
        return {name: each for name, each in super().init(x, y).items() if name != "q"}

    def round(self) -> tuple[Stage, ...]:
        """As FedNest's, with one exchange an inner round."""
        return self._inn_sgd(), *super().round()[1:]


class LFedNest(Nested):
    """LFedNest: FedNest for equal clients; each solves its own linear system. T + 1 exchanges a round.

    T times with fresh participants, then once for x, H_i = ∇²_yy g_i(x_i, y):

        y_i ← y_i − β ∇_y g(x, y_i; ζ), τ_i times;   y ← mean y_i
        x_i ← x_i − α (∇_x f − ∇²_xy g z_i),   z_i = η_H Σ_{j=0}^{N} (I − η_H H_i)^j ∇_y f,   all at (x_i, y);   x ← mean x_i

    With unlike clients it converges to a zero of the mean of their own hypergradients, which is not that of the problem.

    Args:
        eta_x, eta_y: α and β.
        inner: T.
        outer_steps: local steps on x.
        divide_steps: use α/outer_steps and β/τ_i.
        neumann_step: η_H; the step α by default.
        products: N.
    """

    name: ClassVar[str] = "LFedNest"

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "K, C"

    divide_steps: bool = eqx.field(static=True, default=False)
    neumann_step: Any = None
    products: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        _check_neumann_step(self)
        check_counts(self, "products", least=0)

    def init(self, x: Array, y: Array) -> Tree:
        """No anchors."""
        return {"x": x, "y": y}

    def round(self) -> tuple[Stage, ...]:
        """Local steps on y, then local steps on x, each with fresh participants."""
        return self._inn_sgd(), Exchange(only("x", "y"), self._local_outer, _receive, draw="fresh")

    def _own(self, local: Local, k: Any, x: Array, y: Array) -> Array:
        """The client's own hypergradient."""
        return local_hypergradient(local, k, x, y, _neumann_step(self, local.round), self.products)


class LFedNestSVRG(LFedNest):
    """LFedNest with the anchors of FedNest: FedInn, one mean h of the clients' own hypergradients, FedOut; 2T + 2 exchanges.

    h = mean (∇_x f_i − ∇²_xy g_i z_i) at (x, y), then FedNest's SVRG steps on x. The arguments are those of
    :class:`LFedNest`.
    """

    name: ClassVar[str] = "LFedNest_SVRG"

    def init(self, x: Array, y: Array) -> Tree:
        """The anchors q and h start at 0."""
        return Nested.init(self, x, y)

    def round(self) -> tuple[Stage, ...]:
        """FedInn; the hypergradient and FedOut with one set of participants."""
        return self._inn(), Exchange(only("x", "y"), self._hypergradient, _receive, draw="fresh"), self._out()

    def _hypergradient(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return {"h": self._own(local, 0, down["x"], down["y"])}, keep, down


class FedNestMinimax(Nested):
    """FedNest for min_x max_y f: FedInn on −f, h = mean ∇_x f(x, y), FedOut; 2T + 2 exchanges a round.

        y_i ← y_i + β_i (∇_y f(x, y_i; ζ) − ∇_y f(x, y; ζ) + q), τ_i times;   y ← mean y_i,   T times
        x_i ← x_i − α_i (∇_x f(x_i, y; ξ) − ∇_x f(x, y; ξ) + h);   x ← mean x_i

    Args:
        eta_x, eta_y: α and β.
        inner: T.
        outer_steps: local steps on x.
        divide_steps: α_i = α/outer_steps and β_i = β/τ_i, as in the paper; else (the authors' code) α and β.
    """

    name: ClassVar[str] = "FedNest-minimax"

    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "K, C"

    def round(self) -> tuple[Stage, ...]:
        """FedInn; the gradient and FedOut with one set of participants."""
        return self._inn(), Exchange(only("x", "y"), self._gradient, _receive, draw="fresh"), self._out()

    def _gradient(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return {"h": local.f(0, "x").grad_x(down["x"], down["y"])}, keep, down


class LFedNestMinimax(Nested):
    """LFedNest for min_x max_y f: FedNest-minimax without its anchors q and h, plain local steps; T + 1 exchanges a round.

        y_i ← y_i + β ∇_y f(x, y_i; ζ), τ_i times;   y ← mean y_i,   T times with fresh participants, then once for x:
        x_i ← x_i − α ∇_x f(x_i, y; ξ), outer_steps times;   x ← mean x_i

    With unlike clients and more than one local step it stops beside the solution.

    Args:
        eta_x, eta_y: α and β.
        inner: T.
        outer_steps: local steps on x.
        divide_steps: use α/outer_steps and β/τ_i.
    """

    name: ClassVar[str] = "LFedNest-minimax"

    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "K, C"

    divide_steps: bool = eqx.field(static=True, default=False)

    def init(self, x: Array, y: Array) -> Tree:
        """No anchors."""
        return {"x": x, "y": y}

    def round(self) -> tuple[Stage, ...]:
        """Local steps on y, then local steps on x, each with fresh participants."""
        return self._inn_sgd(), Exchange(only("x", "y"), self._local_outer, _receive, draw="fresh")

    def _own(self, local: Local, k: Any, x: Array, y: Array) -> Array:
        """The gradient of f."""
        return local.f(k, "outer").grad_x(x, y)
