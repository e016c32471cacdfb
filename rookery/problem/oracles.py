"""Derivatives. The only file that differentiates anything.

An :class:`Objective` is one loss (f or g) on one draw of data, as a function of vectors x and y. Its methods are the
oracles of the papers:

    grad(x, y)        (∇_x, ∇_y)
    hess(x, y, z)     ∇²_yy · z
    cross(x, y, z)    ∇²_xy · z = ∇_x ⟨∇_y(x, y), z⟩
    second(x, y, z)   ∇_y, ∇²_xy · z and ∇²_yy · z in one pass: the tangent of (∇_x, ∇_y) in direction (0, z)

No Hessian is formed. When a :class:`Tally` listens, each call is counted.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from rookery.problem.clients import Split
from rookery.typing import Scalar, X, Y

Square = Float[Array, "dy dy"]
"""A matrix over y."""

UNITS = ("grad_f", "grad_g", "hvp", "jvp", "server_grad_f")
"""What is counted: gradients of f and of g on a batch, Hessian- and Jacobian-vector products of g, gradients of the
server's own f. The x and y parts of a gradient on the same draw count once together."""

CHUNK = 256
"""Whole sets of unequal sizes are visited so many examples at a time."""

Value = Callable[[Array, Array], Array]
MakeKey = Callable[[], Array]
"""A loss's own randomness: its key is made only if the loss asks for one."""


class Tally:
    """Counts oracle calls while a client function is traced once, in terms of the number τ of local steps.

    ``counts()[unit]`` is (a, b): a + b·τ calls. Calls inside ``start()`` are kept apart: they are made in round 0 only.
    """

    def __init__(self) -> None:
        self._times = np.array([1, 0])
        self._at_start = False
        self._calls: dict[tuple[int, bool, str], np.ndarray] = defaultdict(lambda: np.zeros(2, int))
        self._draws = 0
        self.shows_participants = False
        """Whether the server's part read who takes part."""

    def new_draw(self) -> int:
        """A number for a draw, so that the parts of a gradient on it count once."""
        self._draws += 1
        return self._draws

    def call(self, draw: int, what: str) -> None:
        """One call of ``what`` on a draw."""
        self._calls[draw, self._at_start, what] += self._times

    @contextmanager
    def repeated(self, times: tuple[int, int]) -> Iterator[None]:
        """Calls made inside happen times[0] + times[1]·τ times."""
        before = self._times
        if before[1] and times[1]:
            raise NotImplementedError("a local loop inside a local loop cannot be counted")
        self._times = np.convolve(before, times)[:2]
        yield
        self._times = before

    @contextmanager
    def start(self, times: int = 1) -> Iterator[None]:
        """Calls made inside happen in round 0 only (with ``times`` = −1: in all rounds but that)."""
        before = self._times
        self._at_start, self._times = True, times * before
        yield
        self._at_start, self._times = False, before

    def counts(self, at_start: bool = False) -> dict[str, tuple[int, int]]:
        """(a, b) of every unit that was called."""
        total: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2, int))
        draws = {draw for draw, start, _ in self._calls if start == at_start}
        for draw in draws:
            for unit in UNITS:
                if unit in ("hvp", "jvp"):
                    total[unit] += self._calls[draw, at_start, unit]
                else:
                    x, y = self._calls[draw, at_start, unit + ".x"], self._calls[draw, at_start, unit + ".y"]
                    total[unit] += max(x, y, key=lambda count: (abs(count[1]), abs(count[0])))
        return {unit: (int(total[unit][0]), int(total[unit][1])) for unit in UNITS if total[unit].any()}


class Objective:
    """One loss on one draw of data, as a function of the vectors x and y, with its derivatives."""

    def __init__(self, value: Value, unit: str = "grad_f", tally: Tally | None = None):
        self._value = value
        self._unit = unit
        self._tally = tally
        self._draw = 0 if tally is None else tally.new_draw()

    def _count(self, *what: str) -> None:
        if self._tally is not None:
            for each in what:
                self._tally.call(self._draw, each)

    def value(self, x: X, y: Y) -> Scalar:
        """The loss."""
        return self._value(x, y)

    def grad(self, x: X, y: Y) -> tuple[X, Y]:
        """(∇_x, ∇_y)."""
        self._count(self._unit + ".x", self._unit + ".y")
        found: tuple[X, Y] = jax.grad(self._value, argnums=(0, 1))(x, y)
        return found

    def grad_x(self, x: X, y: Y) -> X:
        """∇_x."""
        self._count(self._unit + ".x")
        found: X = jax.grad(self._value, argnums=0)(x, y)
        return found

    def grad_y(self, x: X, y: Y) -> Y:
        """∇_y."""
        self._count(self._unit + ".y")
        found: Y = jax.grad(self._value, argnums=1)(x, y)
        return found

    def hess(self, x: X, y: Y, z: Y) -> Y:
        """∇²_yy · z."""
        self._count("hvp")
        found: Y = jax.jvp(lambda v: jax.grad(self._value, argnums=1)(x, v), (y,), (z,))[1]
        return found

    def hessian(self, x: X, y: Y) -> Square:
        """∇²_yy as a matrix: one product for each of its columns. For small references only."""
        if self._tally is not None:
            with self._tally.repeated((y.size, 0)):
                self._count("hvp")
        found: Square = jax.hessian(self._value, argnums=1)(x, y)
        return found

    def cross(self, x: X, y: Y, z: Y) -> X:
        """∇²_xy · z, a vector like x."""
        self._count("jvp")
        found: X = jax.jvp(lambda v: jax.grad(self._value, argnums=0)(x, v), (y,), (z,))[1]
        return found

    def second(self, x: X, y: Y, z: Y) -> tuple[Y, X, Y]:
        """(∇_y, ∇²_xy · z, ∇²_yy · z) in one pass."""
        self._count(self._unit + ".y", "jvp", "hvp")
        (_, grad_y), (cross, hess) = jax.jvp(lambda v: jax.grad(self._value, argnums=(0, 1))(x, v), (y,), (z,))
        return grad_y, cross, hess


def saddle(f: Objective, g: Objective, x: X, y: Y, theta: Y, c: Any, nu: Any) -> tuple[X, Y, Y]:
    """MeFBO's directions (h_x, h_y, h_θ), the gradient of one scalar in one reverse pass.

    φ(x, y, θ) = f(x, y)/c + g(x, y) − g(x, θ) − ‖y − θ‖²/(2ν);  h_x = ∇_x φ, h_y = ∇_y φ, h_θ = −∇_θ φ.
    """
    f._count("grad_f.x", "grad_f.y")
    g._count("grad_g.x", "grad_g.y", "grad_g.x", "grad_g.y")

    def phi(x: Array, y: Array, theta: Array) -> Array:
        gap = y - theta
        # Both values of g in one vmap: what depends on x alone is then computed, and differentiated, once.
        g_y, g_theta = jax.vmap(lambda v: g.value(x, v))(jnp.stack([y, theta]))
        found: Array = f.value(x, y) / c + g_y - g_theta - jnp.vdot(gap, gap) / (2 * nu)
        return found

    h_x, h_y, minus_h_theta = jax.grad(phi, argnums=(0, 1, 2))(x, y, theta)
    return h_x, h_y, -minus_h_theta


def repeat(count: int, body: Callable[[Any, Any], Any], start: Any) -> Any:
    """``state = body(k, state)`` for k = 0, ..., count−1. A client has its own, which also counts."""
    return jax.lax.fori_loop(0, count, body, start)


def neumann(
    hess: Callable[[Any, Array], Array], b: Array, step: Any, products: int, repeat: Callable[..., Any] = repeat
) -> Array:
    """step · Σ_{q=0}^{products} ∏_{j=1}^{q} (I − step·H_j) b: products + 1 terms; ``hess(j, v)`` gives H_j v.

    For H_j = H it is (I − (I − step·H)^{products+1}) H⁻¹ b.
    """

    def term(q: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        a, total = state
        a = a - step * hess(q + 1, a)
        return a, total + a

    found: Array = step * repeat(products, term, (b, b))[1]
    return found


def neumann_random(hess: Callable[[Any, Array], Array], b: Array, step: Any, terms: int, key: Array) -> Array:
    """terms · step · ∏_{q=1}^{N'} (I − step·H_q) b with N' uniform on 0..terms−1.

    Its mean over N' is ``neumann(hess, b, step, terms − 1)`` for H_q = H.
    """
    products = jax.random.randint(key, (), 0, terms, jnp.int32)
    found: Array = terms * step * jax.lax.fori_loop(0, products, lambda q, a: a - step * hess(q + 1, a), b)
    return found


def on_batch(loss: Callable[..., Array], batch: Any, key: MakeKey, client: Any) -> Value:
    """A client's loss on a minibatch."""
    return lambda x, y: loss(x, y, batch, key, client)


def on_whole_set(loss: Callable[..., Array], split: Split, row: Any, key: MakeKey, client: Any) -> Value:
    """A client's loss on all of its data, which lie in row ``row`` of the split.

    Clients of equal sizes: one call of the loss. Unequal: the mean of one-example losses, ``CHUNK`` at a time.
    """
    if split.sizes_equal:
        return on_batch(loss, split.take(row, jnp.arange(split.max_size)), key, client)
    size = split.size[row]

    def rows(position: Array) -> tuple[Any, Array, Array]:
        weight = jnp.where(position < size, 1 / size.astype(jnp.result_type(float)), 0.0)
        return split.take(row, jnp.minimum(position, size - 1)), jnp.full_like(position, client), weight

    return _one_by_one(loss, rows, split.max_size, key)


class Part(NamedTuple):
    """A split that holds some of the clients: those of one device."""

    first: Any
    """The number of its first client."""
    clients: Any
    """How many it has; further rows only fill up its tables."""
    before: Any
    """The examples of the clients before."""


def on_everybody(
    loss: Callable[..., Array], split: Split, weights: Array, key: MakeKey, part: Part | None = None
) -> Value:
    """Σ p_i loss_i over all clients and all of their data, or over those of a part.

    Clients of equal sizes: one call of the loss a client. Unequal: one-example losses with weight p_i/size_i.
    """
    first, before = (0, 0) if part is None else (part.first, part.before)
    real = None if part is None else jnp.arange(split.clients) < part.clients
    if split.sizes_equal:

        def value(x: Array, y: Array) -> Array:
            def one(total: Array, row: Array) -> tuple[Array, None]:
                own = on_whole_set(loss, split, row, key, first + row)(x, y)
                own = weights[row].astype(own.dtype) * own
                return total + (own if real is None else jnp.where(real[row], own, 0)), None

            start = jnp.zeros((), jnp.result_type(x, y))
            return jax.lax.scan(jax.checkpoint(one), start, jnp.arange(split.clients))[0]

        return value
    sizes = split.size if real is None else jnp.where(real, split.size, 0)
    ends = jnp.cumsum(sizes)

    def rows(number: Array) -> tuple[Any, Array, Array]:
        row = jnp.minimum(jnp.searchsorted(ends, number, side="right"), split.clients - 1)
        position = jnp.clip(number - (ends[row] - sizes[row]), 0, split.size[row] - 1)
        weight = jnp.where(number < ends[-1], weights[row] / split.size[row], 0.0)
        return split.take(row, position), first + row, weight

    return _one_by_one(loss, rows, split.total, key, before)


def _one_by_one(
    loss: Callable[..., Array],
    rows: Callable[[Array], tuple[Any, Array, Array]],
    total: int,
    key: MakeKey,
    before: Any = 0,
) -> Value:
    """Σ weight · (loss of one example), in chunks; differentiable any number of times with bounded memory."""
    chunk = min(CHUNK, total)

    def value(x: Array, y: Array) -> Array:
        def example(row: Any, client: Array, number: Array) -> Array:
            one = jax.tree.map(lambda leaf: leaf[None], row)
            return loss(x, y, one, lambda: jax.random.fold_in(key(), number), client)

        def add(sum: Array, start: Array) -> tuple[Array, None]:
            number = start + jnp.arange(chunk)
            examples, client, weight = rows(number)
            losses = jax.vmap(example)(examples, client, number + before)
            return sum + jnp.vdot(weight.astype(losses.dtype), losses), None

        zero = jnp.zeros((), jnp.result_type(x, y))
        return jax.lax.scan(jax.checkpoint(add), zero, jnp.arange(0, total, chunk))[0]

    return value
