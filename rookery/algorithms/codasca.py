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

from rookery.algorithm.exchange import Algorithm, Exchange, Reply, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_positive, check_rates, require
from rookery.algorithms.descent_ascent import inside, local_steps, point, server_step
from rookery.algorithms.steps import only
from rookery.problem.clients import Clients
from rookery.problem.layout import Layout
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors, Weighting, X, Y


class ProximalStages(Algorithm):
    """What CODA+ and CODASCA share: the local step with its proximal term, and the stages. Not an algorithm by itself."""

    solves: ClassVar[tuple[str, ...]] = ("minimax",)

    eta: Any = rate(0.1, "free")
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

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """The closed rule of the dual is that of one problem."""
        if self.dual == "closed":
            fits = flat.y.size == 1 and {"a", "b"} <= set(scalars(flat.x))
            require(fits, self, "dual", self.dual, "'gradient' unless x has scalar entries a and b and y is a scalar")

    def step(self, local: Local, k: Any, v: Vectors, x_ref: X, c: dict[str, Any]) -> tuple[Vectors, Vectors]:
        """The point after a step corrected by c, and the gradients whose means are control variates.

        x ← x − η (clip(∇_x f) + c_x + (x − x_ref)/Γ_p + wd·x),   y ← Π_Y(y + η (∇_y f + c_y)) or the closed rule
        """
        x, y, eta = v["x"], v["y"], self.eta_of_stage(local.round)
        f_x, f_y = local.f(k).grad(x, y)
        pull = (x - x_ref) / self.prox + self.weight_decay * x
        x = x - eta * (self.clipped(local, f_x) + c["x"] + pull)
        if self.dual == "closed":
            y, f_y = self.closed_dual(local, x, y, eta, c["y"])
        else:
            y = local.project_y(y + eta * (f_y + c["y"]))
        return {"x": x, "y": y}, {"x": f_x, "y": f_y}

    def closed_dual(self, local: Local, x: X, y: Y, eta: Any, c: Any) -> tuple[Y, Y]:
        """The authors' y ← clip(y + η(2(m + b − a) − 2y + c), 0, 999), and its direction at the y that it leads to."""
        place, x = scalars(local.x_layout), local.project_x(x)
        target = 2 * (self.margin + x[place["b"]] - x[place["a"]])
        y = local.project_y(jnp.clip(y + eta * (target - 2 * y + c), 0, 999))
        return y, target - 2 * y

    def clipped(self, local: Local, f_x: X) -> X:
        """The entries of ∇_x f kept within ±clip, but for those of a and b."""
        if self.clip is None:
            return f_x
        clipped = jnp.clip(f_x, -self.clip, self.clip)
        for place in scalars(local.x_layout).values():
            clipped = clipped.at[place].set(f_x[place])
        return clipped

    def eta_of_stage(self, t: Any) -> Any:
        """η/3^s in the stage s of round t."""
        eta = at(self.eta, t)
        return eta if self.stage is None else eta / 3 ** jnp.asarray(t // self.stage, jnp.result_type(eta))

    def first_reference(self, x: X) -> Tree:
        """x_ref = x_0; for the means of stages the server's iterates are summed up."""
        sums = self.stage is not None and self.reference == "mean"
        return {"x_ref": x, **({"x_sum": jnp.zeros_like(x)} if sums else {})}

    def next_reference(self, ctx: Context, server: Tree, x: X) -> Tree:
        """x_ref after a round that ended at x: a new one if the stage is over."""
        if self.stage is None:
            return {"x_ref": server["x_ref"]}
        over = (ctx.round + 1) % self.stage == 0
        if self.reference == "last":
            return {"x_ref": jnp.where(over, x, server["x_ref"])}
        total = server["x_sum"] + x
        x_ref = jnp.where(over, total / self.stage, server["x_ref"])
        return {"x_ref": x_ref, "x_sum": jnp.where(over, 0, total)}


class CODAPlus(ProximalStages):
    """CODA+: local primal-dual steps with a proximal term, averages every τ steps, stages.

    Zhuoning Yuan, Zhishuai Guo, Yi Xu, Yiming Ying, Tianbao Yang: Federated deep AUC maximization for heterogeneous data
    with a constant communication complexity. ICML 2021; after CODA: Zhishuai Guo, Mingrui Liu, Zhuoning Yuan, Li Shen, Wei
    Liu, Tianbao Yang: Communication-efficient distributed stochastic AUC maximization with deep neural networks. ICML 2020.
    From the authors' public example of CODASCA, without its control variates.

    Solves: minimax; theory for F PL in x and strongly concave in y.
    Paper → here:  v = (w, a, b) → x;  α → y;  I → τ;  T_0 (steps) → stage (rounds).

        x ← x − η (clip(∇_x f_i(x, y; ξ)) + (x − x_ref)/Γ_p + wd·x),   y ← Π_Y(y + η ∇_y f_i(x, y; ξ))     τ times
        x̄ = mean x_i,   ȳ = mean y_i                                                                     at the server
        after every stage   η ← η/3 and x_ref is renewed; it starts at x_0

    x is projected on X before every local step and at the server.

    Args:
        eta: the step of both variables; the authors' .1.
        prox: Γ_p; infinite: no proximal term; the authors' 500.
        weight_decay: wd; the authors' 1e-5.
        clip: bound on each entry of ∇_x f, but for those of x's own entries named a and b; None: no clipping; the
            authors' 1.
        dual: "gradient": as above; "closed": the authors' rule y ← clip(y + η(2(m + b − a) − 2y), 0, 999) with the new
            a and b, which is ∇_α over π(1−π) with class means of the score replaced by a and b. x needs scalar entries a
            and b, y is a scalar.
        margin: m of the closed rule; the authors' 1.
        stage: rounds of a stage; None: one stage; the authors' 500 (4000 steps).
        reference: what x_ref becomes after a stage: the "mean" of the server's x over its rounds, or the "last" of them.

    Published besides: 8 local steps, batches of 32, 20000 steps.
    """

    name: ClassVar[str] = "CODA+"
    paper: ClassVar[str] = "CODASCA"
    status: ClassVar[str] = "C"

    def init(self, x: X, y: Y) -> Tree:
        """The reference is the start."""
        return {"x": x, "y": y, **self.first_reference(x)}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of iterates."""
        return (Exchange(only("x", "y", "x_ref"), self.client, self.server),)

    def client(self, local: Local, down: Tree) -> Tree:
        """τ steps."""
        none = {"x": 0.0, "y": 0.0}
        return local_steps(local, point(down), lambda k, v: self.step(local, k, v, down["x_ref"], none)[0])

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The averages, and maybe the next stage."""
        new = inside(ctx, mean)
        return {**new, **self.next_reference(ctx, server, new["x"])}


class CODASCA(ProximalStages):
    """CODASCA: CODA+ with control variates and a step of the server.

    Zhuoning Yuan, Zhishuai Guo, Yi Xu, Yiming Ying, Tianbao Yang: Federated deep AUC maximization for heterogeneous data
    with a constant communication complexity. ICML 2021. From the authors' public example (LibAUC); a server step other
    than 1 from general knowledge.

    Solves: minimax; theory for F PL in x and strongly concave in y.
    Paper → here:  v = (w, a, b) → x;  α → y;  I → τ;  T_0 (steps) → stage (rounds).

        x ← x − η (clip(∇_x f_i) + c_x − c_x,i + (x − x_ref)/Γ_p + wd·x),   y ← Π_Y(y + η (∇_y f_i + c_y − c_y,i))   τ times
        c_v,i ← the mean of the client's ∇_v f_i over the round,   c_v ← c_v + Σ_{i∈C} p_i Δc_v,i                   v = x, y
        v̄ ← v̄ + γ (mean v_i − v̄)                                                                            at the server
        after every stage   η ← η/3 and x_ref is renewed; it starts at x_0

    With dual="closed", c_y,i is the mean of 2(m + b − a) − 2y with a, b and y AFTER each step. A client keeps c_i, and c
    stays the p-weighted mean of all that is kept, absent clients' too.

    Args:
        eta, prox, weight_decay, clip, dual, margin, stage, reference: as in :class:`CODAPlus`, with the same published
            values.
        gamma: the server's step; above 1 it extrapolates; the authors' 1, FedSGDA's grid for this baseline {.9, 1, 1.5, 2}.
    """

    name: ClassVar[str] = "CODASCA"
    paper: ClassVar[str] = "CODASCA"
    status: ClassVar[str] = "C"

    gamma: Any = rate(1.0, "server")

    def __check_init__(self) -> None:
        check_rates(self, "gamma")

    def init(self, x: X, y: Y) -> Tree:
        """The reference is the start; control variates start at 0."""
        return {"x": x, "y": y, **self.first_reference(x), **self.keep(x, y)}

    def keep(self, x: X, y: Y) -> Tree:
        """A client keeps its control variates."""
        return {"c_x": jnp.zeros_like(x), "c_y": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of iterates and of changes of control variates."""
        weighting: Weighting = {"x": "average", "y": "average", "c_x": "direction", "c_y": "direction"}
        return (Exchange(only("x", "y", "x_ref", "c_x", "c_y"), self.client, self.server, weighting),)

    def client(self, local: Local, down: Tree, keep: Tree) -> Reply:
        """τ corrected steps; the new c_i is the mean of their gradients."""
        correction = {"x": down["c_x"] - keep["c_x"], "y": down["c_y"] - keep["c_y"]}

        def step(k: Any, v: Vectors) -> Vectors:
            new, f = self.step(local, k, v, down["x_ref"], correction)
            return {**new, "c_x": v["c_x"] + f["x"], "c_y": v["c_y"] + f["y"]}

        sums = {c: jnp.zeros_like(each) for c, each in keep.items()}
        end = local_steps(local, {**point(down), **sums}, step)
        new = {c: end[c] / local.tau for c in keep}
        return Reply({**point(end), **{c: new[c] - keep[c] for c in keep}}, keep=new)

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The server's step, the mean of what clients keep, and maybe the next stage."""
        gamma = at(self.gamma, ctx.round)
        new = inside(ctx, server_step(server, mean, gamma, gamma))
        c = {name: server[name] + jnp.asarray(ctx.share, mean[name].dtype) * mean[name] for name in ("c_x", "c_y")}
        return {**new, **c, **self.next_reference(ctx, server, new["x"])}


def scalars(layout: Layout) -> dict[str, int]:
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
