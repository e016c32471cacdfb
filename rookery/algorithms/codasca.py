"""CODA+ and CODASCA: local descent-ascent in proximal stages, made for maximising the area under the ROC curve.

    min over v = (w, a, b), max over α of   (1−π) E[(h−a)² 1₊] + π E[(h−b)² 1₋]
                                            + 2α (π(1−π) m + E[π h 1₋ − (1−π) h 1₊]) − π(1−π) α²

with h the score and π the share of positives. Here x is v and y is α; any other minimax problem will do as well.
"""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.algorithm.exchange import Exchange, Stage
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_positive, check_rates, require
from rookery.algorithms.fedsgda import DescentAscent, correction, server_step
from rookery.algorithms.steps import only, zeros
from rookery.problem.clients import Clients
from rookery.problem.layout import Layout
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors


class CODAPlus(DescentAscent):
    """CODA+: local primal-dual steps with a proximal term, averages every τ steps, stages.

        x ← x − η (clip(∇_x f(x, y)) + (x − x_ref)/Γ_p + wd·x),   y ← Π_Y(y + η ∇_y f(x, y)),   x as it was before

    After every stage η ← η/3, and x_ref is renewed; it starts at x_0. x is projected on X before every local step and at the
    server.

    Args:
        eta: the step of both variables.
        prox: Γ_p; infinite: no proximal term.
        weight_decay: wd.
        clip: bound on each entry of ∇_x f, but for those of x's own entries named a and b; None: no clipping.
        dual: "gradient": as above; "closed": the authors' rule y ← clip(y + η(2(m + b − a) − 2y), 0, 999) with the new
            a and b, which is ∇_α over π(1−π) with class means of the score replaced by a and b. x needs scalar entries a
            and b, y is a scalar.
        margin: m of the closed rule.
        stage: rounds of a stage; None: one stage.
        reference: what x_ref becomes after a stage: the "mean" of the server's x over its rounds, or the "last" of them.

    The authors' values: eta 0.1, prox 500, weight_decay 1e-5, clip 1, 8 local steps, stages of 500 rounds.
    """

    paper: ClassVar[str] = "CODASCA"
    status: ClassVar[str] = "C"
    _sent: ClassVar[tuple[str, ...]] = ("x", "y", "x_ref")

    eta: Any = 0.1
    prox: Any = float("inf")
    weight_decay: Any = 0.0
    clip: Any = None
    dual: Literal["gradient", "closed"] = eqx.field(static=True, default="gradient")
    margin: Any = 1.0
    stage: int | None = eqx.field(static=True, default=None)
    reference: Literal["mean", "last"] = eqx.field(static=True, default="mean")

    def __check_init__(self) -> None:
        check_rates(self, "eta", "weight_decay", "margin")
        check_positive(self, "prox")
        require(self.dual in ("gradient", "closed"), self, "dual", self.dual, "'gradient' or 'closed'")
        require(self.reference in ("mean", "last"), self, "reference", self.reference, "'mean' or 'last'")
        if self.clip is not None:
            check_positive(self, "clip")
        if self.stage is not None:
            check_counts(self, "stage")

    def init(self, x: Array, y: Array) -> Tree:
        """The reference is the start; for the means of stages their iterates are summed up."""
        return {"x": x, "y": y, "x_ref": x, **({"x_sum": jnp.zeros_like(x)} if self._sums else {})}

    @property
    def _sums(self) -> bool:
        return self.stage is not None and self.reference == "mean"

    def _step(self, local: Local, k: Any, v: Vectors, seen: Tree) -> Vectors:
        return self._primal_dual(local, k, v, seen, {"x": 0.0, "y": 0.0})[0]

    def _primal_dual(self, local: Local, k: Any, v: Vectors, seen: Tree, c: dict[str, Any]) -> tuple[Vectors, Vectors]:
        """The new point after a step corrected by c, and what the control variates are the means of."""
        x, y, eta = v["x"], v["y"], self._eta(local.round)
        f_x, f_y = local.f(k).grad(x, y)
        pull = (x - seen["x_ref"]) / self.prox + self.weight_decay * x
        x = x - eta["x"] * (self._clipped(local, f_x) + c["x"] + pull)
        if self.dual == "closed":
            y, f_y = self._closed(local, x, y, eta["y"], c["y"])
        else:
            y = local.project_y(y + eta["y"] * (f_y + c["y"]))
        return {"x": x, "y": y}, {"x": f_x, "y": f_y}

    def _closed(self, local: Local, x: Array, y: Array, eta: Any, c: Any) -> tuple[Array, Array]:
        """The authors' dual step, and its direction at the y that it leads to."""
        place, x = _scalars(local.x_layout), local.project_x(x)
        target = 2 * (self.margin + x[place["b"]] - x[place["a"]])
        y = local.project_y(jnp.clip(y + eta * (target - 2 * y + c), 0, 999))
        return y, target - 2 * y

    def _clipped(self, local: Local, f_x: Array) -> Array:
        if self.clip is None:
            return f_x
        clipped = jnp.clip(f_x, -self.clip, self.clip)
        for place in _scalars(local.x_layout).values():
            clipped = clipped.at[place].set(f_x[place])
        return clipped

    def _eta(self, t: Any) -> dict[str, Any]:
        eta = at(self.eta, t)
        if self.stage is not None:
            eta = eta / 3 ** jnp.asarray(t // self.stage, jnp.result_type(eta))
        return {"x": eta, "y": eta}

    def _server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        new = super()._server(ctx, server, mean)
        if self.stage is None:
            return new
        over = (ctx.round + 1) % self.stage == 0
        if not self._sums:
            return {**new, "x_ref": jnp.where(over, new["x"], server["x_ref"])}
        total = server["x_sum"] + new["x"]
        x_ref = jnp.where(over, total / self.stage, server["x_ref"])
        return {**new, "x_ref": x_ref, "x_sum": jnp.where(over, 0, total)}

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """The closed rule of the dual is that of one problem."""
        if self.dual == "closed":
            fits = flat.y.size == 1 and {"a", "b"} <= set(_scalars(flat.x))
            require(fits, self, "dual", self.dual, "'gradient' unless x has scalar entries a and b and y is a scalar")


class CODASCA(CODAPlus):
    """CODASCA: CODA+ with control variates and a step of the server.

        x ← x − η (clip(∇_x f(x, y)) − c_x,i + c_x + (x − x_ref)/Γ_p + wd·x),   y ← Π_Y(y + η (∇_y f(x, y) − c_y,i + c_y))
        c_v,i ← the mean of the client's ∇_v f over the round,   c_v ← c_v + Σ_{i∈C} p_i Δc_v,i
        v̄ ← v̄ + γ (mean v_i − v̄),   v = x, y

    With dual="closed", c_y,i is the mean of 2(m + b − a) − 2y with a, b and y AFTER each step. A client keeps c_i, and c
    stays the p-weighted mean of all that is kept, absent clients' too.

    Args:
        gamma: server step; above 1 it extrapolates.

    The others are those of :class:`CODAPlus`.
    """

    paper: ClassVar[str] = "CODASCA"
    status: ClassVar[str] = "C"
    _sent: ClassVar[tuple[str, ...]] = ("x", "y", "x_ref", "c_x", "c_y")

    gamma: Any = 1.0

    def __check_init__(self) -> None:
        check_rates(self, "gamma")

    def init(self, x: Array, y: Array) -> Tree:
        """Control variates start at 0."""
        return {**super().init(x, y), **self.keep(x, y)}

    def keep(self, x: Array, y: Array) -> Tree:
        """A client keeps its control variates."""
        return {"c_x": jnp.zeros_like(x), "c_y": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of iterates and of changes of control variates."""
        weighting = {"x": "average", "y": "average", "c_x": "direction", "c_y": "direction"}
        return (Exchange(only(*self._sent), self._client, self._server, weighting),)

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        seen = {**down, "own_x": keep["c_x"], "own_y": keep["c_y"]}
        end = self._descend(local, {"x": down["x"], "y": down["y"], **zeros(keep)}, seen)
        new = {c: end[c] / local.tau for c in keep}
        return {**end, **{c: new[c] - keep[c] for c in keep}}, new, carry

    def _step(self, local: Local, k: Any, v: Vectors, seen: Tree) -> Vectors:
        new, f = self._primal_dual(local, k, v, seen, correction(seen))
        return {**new, "c_x": v["c_x"] + f["x"], "c_y": v["c_y"] + f["y"]}

    def _server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        gamma = at(self.gamma, ctx.round)
        new = super()._server(ctx, server, server_step(server, mean, gamma, gamma))
        share = ctx.active / ctx.n  # the mean of changes is weighted by (n/|C|)p_i
        return {**new, **{c: server[c] + share.astype(mean[c].dtype) * mean[c] for c in ("c_x", "c_y")}}


def _scalars(layout: Layout) -> dict[str, int]:
    """Where the entries a and b of the pytree lie in its vector, if it has such scalars."""
    tree = jax.tree.unflatten(layout.treedef, range(len(layout.shapes)))
    places, place = {}, 0
    for (path, _), shape in zip(jax.tree_util.tree_leaves_with_path(tree), layout.shapes, strict=True):
        if shape is None:
            continue
        name = getattr(path[0], "key", getattr(path[0], "name", None)) if len(path) == 1 else None
        if name in ("a", "b") and np.prod(shape) == 1:
            places[name] = place
        place += int(np.prod(shape))
    return places
