"""The procedures that FedNest's family is made of, each a function that gives stages of a round.

FedInn moves y, FedIHGP finds z, FedOut moves x; the last two have versions without the anchors or the exchanges.
Scratch vectors (q, a, z, h) lie in the server's state; they mean nothing between rounds. A point is projected on its
set before every local step, so that no gradient is taken outside; what the last step makes of it is averaged as it is,
and the server projects the average.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from rookery.algorithm.exchange import Exchange, Repeat, Reply, Stage
from rookery.algorithm.rate import Rates, Scales
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_optional, check_rates
from rookery.algorithms.steps import local_hypergradient, only, receive, repeated, sgd_steps, svrg_steps, uniform_below
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors, X, Y


def fed_inn(eta_y: Any, inner: int, divide: bool) -> tuple[Stage, ...]:
    """FedInn: SVRG steps on y; ``inner`` times two exchanges with the same fresh participants.

    q = mean ∇_y g(x, y);   y_i ← y_i − β_i (∇_y g(x, y_i; ζ) − ∇_y g(x, y; ζ) + q), τ_i times from y;   y ← mean y_i
    """

    def anchor(local: Local, down: Tree) -> Reply:
        return Reply({"q": local.g(local.index, "anchor").grad_y(down["x"], down["y"])}, carry=down)

    def steps(local: Local, down: Tree, carry: Tree) -> Vectors:
        beta = at(eta_y, local.round) / (local.tau if divide else 1)
        return {"y": svrg_steps(local, local.index, carry["x"], carry["y"], down["q"], beta)}

    first = Exchange(only("x", "y"), anchor, receive, draw="fresh")
    return (Repeat(inner, (first, Exchange(only("q"), steps, receive))),)


def fed_inn_sgd(eta_y: Any, inner: int, divide: bool) -> tuple[Stage, ...]:
    """FedInn without its anchor; ``inner`` times one exchange with fresh participants.

    y_i ← y_i − β_i ∇_y g(x, y_i; ζ), τ_i times from y;   y ← mean y_i
    """

    def steps(local: Local, down: Tree) -> Vectors:
        beta = at(eta_y, local.round) / (local.tau if divide else 1)
        return {"y": sgd_steps(local, local.index, down["x"], down["y"], beta)}

    return (Repeat(inner, (Exchange(only("x", "y"), steps, receive, draw="fresh"),)),)


def fed_ihgp(eta_h: Any, products: int) -> tuple[Stage, ...]:
    """FedIHGP by the full series of N products, N + 1 exchanges with one fresh set of participants.

    a_0 = mean ∇_y f,   a_j = mean (a_{j−1} − η_H ∇²_yy g a_{j−1}),   z = η_H (a_0 + ... + a_N)
    """

    def start(ctx: Context, server: Tree, mean: Tree) -> Tree:
        a = mean["a"] * at(eta_h, ctx.round)
        return {**server, "a": a, "z": a}

    def sum_up(ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, "a": mean["a"], "z": server["z"] + mean["a"]}

    hop = Exchange(only("a"), lambda local, down, carry: _hop(local, down["a"], carry, eta_h), sum_up)
    return Exchange(only("x", "y"), _slope, start, draw="fresh"), *repeated(products, hop)


def fed_ihgp_random(eta_h: Any, products: int) -> tuple[Stage, ...]:
    """FedIHGP by one random term, N' + 1 exchanges with one fresh set of participants, N' uniform on 0..N−1.

    a_0 = N η_H mean ∇_y f,   a_j = mean (a_{j−1} − η_H ∇²_yy g a_{j−1}),   z = a_{N'}
    """

    def start(ctx: Context, server: Tree, mean: Tree) -> Tree:
        a = mean["a"] * at(eta_h, ctx.round) * products
        return {**server, "a": a, "z": a}

    def replace(ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, "a": mean["a"], "z": mean["a"]}

    def wanted(
        server: Tree, ctx: Context
    ) -> Any:  # hop j = index + 1 is one of the N', of which there are at most N − 1
        return ctx.index < uniform_below(ctx, "neumann", products)

    hop = Exchange(only("a"), lambda local, down, carry: _hop(local, down["a"], carry, eta_h), replace, when=wanted)
    return Exchange(only("x", "y"), _slope, start, draw="fresh"), *repeated(products - 1, hop)


def fed_ihgp_code(eta_h: Any, products: int) -> tuple[Stage, ...]:
    """FedIHGP as the authors' code computes it: after the common start every client goes on with its own power.

    a_0 = mean ∇_y f,   z = η_H (a_0 + Σ_{j=1}^{N} (1/j) mean (I − η_H ∇²_yy g_i)^j a_0)
    """

    def slope(local: Local, down: Tree) -> Reply:
        up = _slope(local, down).up
        return Reply(up, carry={**down, "power": up["a"]})

    def start(ctx: Context, server: Tree, mean: Tree) -> Tree:
        a = mean["a"] * at(eta_h, ctx.round)
        return {**server, "a": a, "z": a}

    def own_hop(local: Local, down: Tree, carry: Tree) -> Reply:
        up = _hop(local, jnp.where(local.index == 0, down["a"], carry["power"]), carry, eta_h)
        return Reply(up, carry={**carry, "power": up["a"]})

    def sum_up(ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, "a": mean["a"], "z": server["z"] + mean["a"] / (ctx.index + 1)}

    hop = Exchange(only("a"), own_hop, sum_up)
    return Exchange(only("x", "y"), slope, start, draw="fresh"), *repeated(products, hop)


def hypergradient() -> tuple[Stage, ...]:
    """h = mean (∇_x f − ∇²_xy g z), with the participants of FedIHGP."""

    def client(local: Local, down: Tree, carry: Tree) -> Vectors:
        x, y = carry["x"], carry["y"]
        return {"h": local.f(0, "x").grad_x(x, y) - local.g(0, "x").cross(x, y, down["z"])}

    return (Exchange(only("z"), client, receive),)


def anchored(direction: Callable[..., X]) -> tuple[Stage, ...]:
    """h = mean of the clients' own directions ``direction(local, 0, x, y)``, with fresh participants."""

    def client(local: Local, down: Tree) -> Reply:
        return Reply({"h": direction(local, 0, down["x"], down["y"])}, carry=down)

    return (Exchange(only("x", "y"), client, receive, draw="fresh"),)


def fed_out(eta_x: Any, outer_steps: int, divide: bool) -> tuple[Stage, ...]:
    """FedOut: SVRG steps on x, one exchange with the participants that know x and y.

    x_i ← x_i − α_i (∇_x f(x_i, y; ξ) − ∇_x f(x, y; ξ) + h), ``outer_steps`` times from x;   x ← mean x_i
    """

    def client(local: Local, down: Tree, carry: Tree) -> Vectors:
        x, y, h = carry["x"], carry["y"], down["h"]
        alpha = at(eta_x, local.round) / (outer_steps if divide else 1)

        def step(k: Any, x_i: X) -> Tree:
            f, x_i = local.f(k, "outer"), local.project_x(x_i)
            return x_i - alpha * (f.grad_x(x_i, y) - f.grad_x(x, y) + h)

        return {"x": local.repeat(outer_steps, step, x)}

    return (Exchange(only("h"), client, receive),)


def local_out(eta_x: Any, outer_steps: int, divide: bool, direction: Callable[..., X]) -> tuple[Stage, ...]:
    """FedOut without its anchor, one exchange with fresh participants.

    x_i ← x_i − α_i direction(x_i, y), ``outer_steps`` times from x;   x ← mean x_i
    """

    def client(local: Local, down: Tree) -> Vectors:
        y, alpha = down["y"], at(eta_x, local.round) / (outer_steps if divide else 1)

        def step(k: Any, x_i: X) -> Tree:
            x_i = local.project_x(x_i)
            return x_i - alpha * direction(local, k, x_i, y)

        return {"x": local.repeat(outer_steps, step, down["x"])}

    return (Exchange(only("x", "y"), client, receive, draw="fresh"),)


def _slope(local: Local, down: Tree) -> Reply:
    return Reply({"a": local.f(0, "z").grad_y(down["x"], down["y"])}, carry=down)


def _hop(local: Local, a: Y, carry: Tree, eta_h: Any) -> Vectors:
    """a − η_H ∇²_yy g a."""
    return {"a": a - at(eta_h, local.round) * local.g(local.index + 1, "z").hess(carry["x"], carry["y"], a)}


def scratch(x: X, y: Y, *names: str) -> Tree:
    """x and y, and the scratch vectors q, a, z (like y) and h (like x) at 0."""
    return {"x": x, "y": y, **{name: jnp.zeros_like(x if name == "h" else y) for name in names}}


def own_hypergradient(eta_h: Any, products: int) -> Callable[..., X]:
    """The client's own hypergradient as a function of (local, k, x, y)."""
    return lambda local, k, x, y: local_hypergradient(local, k, x, y, at(eta_h, local.round), products)


def series_step(algorithm: Any) -> Any:
    """η_H; by default the step of x."""
    return algorithm.eta_x if algorithm.neumann_step is None else algorithm.neumann_step


def in_all_steps(rates: Rates, scales: Scales) -> Any:
    """A step that is divided by τ may be τ times as long."""
    return scales.tau


def check_nested(owner: Any) -> None:
    """The rates and counts of the family."""
    check_rates(owner, "eta_x", "eta_y")
    check_counts(owner, "inner", "outer_steps")
    if hasattr(owner, "neumann_step"):
        check_optional(check_rates, owner, "neumann_step")
