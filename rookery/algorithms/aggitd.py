"""FBO-AggITD: the hypergradient's recursion during the lower level's own exchanges."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Stage
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_rates, require
from rookery.algorithms.fednest import svrg_steps, uniform_below
from rookery.algorithms.steps import only
from rookery.problem.schedules import at
from rookery.typing import Tree, Weighting


class FBOAggITD(Algorithm):
    """A method of the type of FBO-AggITD (defined here, its paper was not at hand): no exchanges only for z.

    With J uniform on 0..N−1 and one set of participants, for s = 0, ..., N−1 (one exchange each), Σ weighted (n/P)p_i:

        y^{s+1} = y^s − η_y Σ ∇_y g(x, y^s)
        z^J = Σ ∇_y f(x, y^J),   z^s = z^{s−1} − η_H Σ ∇²_yy g(x, y^s) z^{s−1} for s > J

    and x ← x − γ_x Σ (∇_x f − N η_H ∇²_xy g z^{N−1}) at y^N, one more. At y^s = y*(x) the mean over J is a Neumann series
    of N terms.

    Args:
        gamma_x, eta_y: steps.
        neumann_step: η_H; the step η_y by default.
        inner: N.
        svrg: FedNest's FedInn (τ_i local steps of η_y/τ_i with a control variate) for y^{s+1}; N more exchanges.
        exact_itd: instead of z the derivative of y^N by reverse mode, on the batches of the way there, in N more exchanges:
            h = ∇_x f(x, y^N), a = ∇_y f(x, y^N), then for s = N−1, ..., 0: h ← h − η_y ∇²_xy g(x, y^s) a,
            a ← a − η_y ∇²_yy g(x, y^s) a.
    """

    name: ClassVar[str] = "FBO-AggITD"

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FBO-AggITD"
    status: ClassVar[str] = "D"

    gamma_x: Any = 0.1
    eta_y: Any = 0.1
    neumann_step: Any = None
    inner: int = eqx.field(static=True, default=5)
    svrg: bool = eqx.field(static=True, default=False)
    exact_itd: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_rates(self, "gamma_x", "eta_y", *([] if self.neumann_step is None else ["neumann_step"]))
        check_counts(self, "inner")
        require(not (self.svrg and self.exact_itd), self, "svrg", self.svrg, "False if exact_itd=True")

    def init(self, x: Array, y: Array) -> Tree:
        """z holds the running vector of the round; q is the control variate."""
        return {"x": x, "y": y, "z": jnp.zeros_like(y), **({"q": jnp.zeros_like(y)} if self.svrg else {})}

    def round(self) -> tuple[Stage, ...]:
        """x travels once, with the first exchange."""
        if self.exact_itd:
            return self._there_and_back()
        first = self._phase(0, ("x", "y"), "before", "start")
        later = Repeat(self.inner - 1, self._phase(1, ("y",), "before", "start", "product"))
        end = Exchange(only("y", "z"), self._end, self._take_x, "direction")
        return (*first, later, end) if self.inner > 1 else (*first, end)

    def _phase(self, s0: int, sent: tuple[str, ...], *parts: str) -> tuple[Stage, ...]:
        """From y^s to y^{s+1}, s = s0 + index: of the exchanges given the round's J wants one."""
        weighting: Weighting = {"y": "average" if self.svrg else "direction", "z": "direction"}

        def exchange(part: str) -> Exchange:
            down = only(*sent, "z") if part == "product" else only(*sent)
            client, server = partial(self._client, s0, part), partial(self._server, part)
            return Exchange(down, client, server, weighting, when=partial(self._wanted, s0, part))

        local_steps = (Exchange(only("q"), partial(self._local_steps, s0), _take_y),) if self.svrg else ()
        return *(exchange(part) for part in parts), *local_steps

    def _wanted(self, s0: int, part: str, server: Tree, ctx: Context) -> Any:
        s, start = s0 + ctx.index, uniform_below(ctx, "start", self.inner)
        return {"before": s < start, "start": s == start, "product": s > start}[part]

    def _client(self, s0: int, part: str, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        x, y, s = (down if s0 == 0 else carry)["x"], down["y"], s0 + local.index
        up = {"y": local.g(s, "anchor").grad_y(x, y)}
        if part == "start":
            up["z"] = local.f(s, "z").grad_y(x, y)
        if part == "product":
            up["z"] = local.g(s, "z").hess(x, y, down["z"])
        return up, keep, {"x": x, "y": y}

    def _server(self, part: str, ctx: Context, server: Tree, mean: Tree) -> Tree:
        new = {**server, "q": mean["y"]} if self.svrg else self._step_y(ctx, server, mean)
        if part == "start":
            return {**new, "z": mean["z"]}
        if part == "product":
            return {**new, "z": server["z"] - self._neumann_step(ctx.round) * mean["z"]}
        return new

    def _neumann_step(self, t: Any) -> Any:
        return at(self.eta_y if self.neumann_step is None else self.neumann_step, t)

    def _local_steps(self, s0: int, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        beta = at(self.eta_y, local.round) / local.tau
        return {"y": svrg_steps(local, s0 + local.index, carry["x"], carry["y"], down["q"], beta)}, keep, carry

    def _end(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        x, y, scale = carry["x"], down["y"], self.inner * self._neumann_step(local.round)
        return {"x": local.f(0, "x").grad_x(x, y) - local.g(0, "x").cross(x, y, scale * down["z"])}, keep, carry

    def _step_y(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, "y": ctx.project_y(server["y"] - at(self.eta_y, ctx.round) * mean["y"])}

    def _take_x(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, "x": ctx.project_x(server["x"] - at(self.gamma_x, ctx.round) * mean["x"])}

    # exact_itd: participants remember the path y^0, ..., y^{N−1} and their own part of h

    def _there_and_back(self) -> tuple[Stage, ...]:
        first = Exchange(only("x", "y"), partial(self._there, 0), self._step_y, "direction")
        there = Exchange(only("y"), partial(self._there, 1), self._step_y, "direction")
        turn = Exchange(only("y"), self._turn, _take_z, "direction")
        back = Exchange(only("z"), self._back, self._step_z, "direction")
        last = Exchange(only("z"), self._back_at_start, self._take_x, "direction")
        if self.inner == 1:
            return first, turn, last
        return first, Repeat(self.inner - 1, (there,)), turn, Repeat(self.inner - 1, (back,)), last

    def _there(self, s0: int, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        y, s = down["y"], s0 + local.index
        if s0 == 0:
            carry = {"x": down["x"], "path": jnp.zeros((self.inner, y.size), y.dtype)}
        up = {"y": local.g(s, "anchor").grad_y(carry["x"], y)}
        return up, keep, {**carry, "path": carry["path"].at[s].set(y)}

    def _turn(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        f_x, f_y = local.f(0, "x").grad(carry["x"], down["y"])
        return {"z": f_y}, keep, {**carry, "h": f_x}

    def _back(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        s = self.inner - 1 - local.index
        hess = local.g(s, "anchor").hess(carry["x"], carry["path"][s], down["z"])
        return {"z": hess}, keep, {**carry, "h": self._less(local, s, down, carry)}

    def _back_at_start(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return {"x": self._less(local, 0, down, carry)}, keep, carry

    def _less(self, local: Local, s: Any, down: Tree, carry: Tree) -> Array:
        """h − η_y ∇²_xy g(x, y^s) a."""
        cross = local.g(s, "anchor").cross(carry["x"], carry["path"][s], down["z"])
        return carry["h"] - at(self.eta_y, local.round) * cross

    def _step_z(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, "z": server["z"] - at(self.eta_y, ctx.round) * mean["z"]}


def _take_y(ctx: Context, server: Tree, mean: Tree) -> Tree:
    return {**server, "y": ctx.project_y(mean["y"])}


def _take_z(ctx: Context, server: Tree, mean: Tree) -> Tree:
    return {**server, "z": mean["z"]}
