"""Test problems with known solutions, each given twice: losses for Rookery in JAX, closed forms in NumPy.

    QB  bilevel    f_i = ½xᵀP_i x + a_iᵀx + ½yᵀR_i y + b_iᵀy + xᵀS_i y,   g_i = ½yᵀH_i y − yᵀ(E_i x + e_i)
    QM  minimax    f_i = ½xᵀP_i x + a_iᵀx + xᵀS_i y − ½yᵀM_i y + b_iᵀy
    TW  weighting  f_i = ½‖A_i w − B_i‖² + cos(a_iᵀw − b_i), f_0 at the server of the same kind

An example is a dict of matrices; a loss is the mean over its examples. The noisy losses add σ⟨ξ, (x, y)⟩ with ξ drawn from
the loss's own key, so that the same draw has the same ξ at every point; ``noise`` draws it once more.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import rookery as rk
from rookery.problem.keys import BATCH, Stream, as_key

N, DX, DY = 4, 3, 4
WEIGHTS = np.array([0.1, 0.45, 0.2, 0.25])  # no two sum to 1/2


# --- the losses in JAX -----------------------------------------------------------------------------------------------


def _mean(batch):
    return jax.tree.map(lambda leaf: leaf.mean(0), batch)


def upper(x, y, batch):
    q = _mean(batch)
    return 0.5 * x @ q["P"] @ x + q["a"] @ x + 0.5 * y @ q["R"] @ y + q["b"] @ y + x @ q["S"] @ y


def lower(x, y, batch):
    q = _mean(batch)
    return 0.5 * y @ q["H"] @ y - y @ (q["E"] @ x + q["e"])


def objective(x, y, batch):
    q = _mean(batch)
    return 0.5 * x @ q["P"] @ x + q["a"] @ x + x @ q["S"] @ y - 0.5 * y @ q["M"] @ y + q["b"] @ y


def weighting_loss(w, batch):
    residual = jnp.einsum("mrd,d->mr", batch["A"], w) - batch["B"]
    return (0.5 * (residual**2).sum(1) + jnp.cos(batch["a"] @ w - batch["b"])).mean()


def _noise(x, y, batch, key):
    xi = _draw(key, x.size + y.size)
    return batch["sigma"].mean() * (xi[: x.size] @ x + xi[x.size :] @ y)


def _draw(key, size):
    """Mean 0, variance 1, uniform, from the key's own 64 bits: ``jax.random`` would take much longer to compile."""
    words, j = jax.random.key_data(key), jnp.arange(size, dtype=jnp.uint32)
    bits = words[0] * (j * jnp.uint32(0x9E3779B2) + jnp.uint32(0x85EBCA77)) + words[1] * (
        j * jnp.uint32(0x27D4EB2E) + 1
    )
    return 12**0.5 * ((bits + 0.5) / 2**32 - 0.5)


def noisy_upper(x, y, batch, key):
    return upper(x, y, batch) + _noise(x, y, batch, key)


def noisy_lower(x, y, batch, key):
    return lower(x, y, batch) + _noise(x, y, batch, key)


def noisy_objective(x, y, batch, key):
    return objective(x, y, batch) + _noise(x, y, batch, key)


def noise(seed, name, steps, client=0, round=0):
    """ξ = (ξ_x, ξ_y) of the draw ``name`` ("upper x", "lower y", ...) of the local steps 0, 1, ..., one row a step."""
    return np.asarray(_noises(as_key(seed), jnp.arange(steps), name, jnp.int32(client), jnp.int32(round)))


@partial(jax.jit, static_argnames="name")
def _noises(key, steps, name, client, round):
    stream = Stream(key, BATCH, client, round)
    return jax.vmap(lambda k: _draw(stream.key(k, name, 0), DX + DY))(steps)


# --- QB --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QB:
    """``data[i]`` is a dict of arrays with a leading axis of examples; ``p`` are the weights of the clients."""

    data: list
    p: np.ndarray

    @property
    def n(self):
        return len(self.data)

    def clients(self):
        return rk.Clients(self.data, weights=self.p)

    def reweighted(self, p):
        return replace(self, p=np.asarray(p) / np.sum(p))

    def __post_init__(self):
        for name in self.data[0]:  # bars: P, a, ..., the p-weighted means
            object.__setattr__(self, name, np.tensordot(self.p, self.own(name), 1))

    def own(self, name):
        """One matrix a client."""
        return np.stack([each[name].mean(0) for each in self.data])

    def alone(self, i):
        """The problem of client i."""
        return type(self)([self.data[i]], np.ones(1))

    def f_x(self, x, y):
        return self.P @ x + self.a + self.S @ y

    def f_y(self, x, y):
        return self.R @ y + self.b + self.S.T @ x

    def g_y(self, x, y):
        return self.H @ y - self.E @ x - self.e

    def directions(self, x, y, z):
        return {"x": self.f_x(x, y) + self.E.T @ z, "y": self.g_y(x, y), "z": self.H @ z - self.f_y(x, y)}

    def value(self, x, y):
        return 0.5 * x @ self.P @ x + self.a @ x + 0.5 * y @ self.R @ y + self.b @ y + x @ self.S @ y

    # one lower level for all

    def y_star(self, x):
        return np.linalg.solve(self.H, self.E @ x + self.e)

    def z_star(self, x):
        return np.linalg.solve(self.H, self.f_y(x, self.y_star(x)))

    def phi(self, x):
        return self.value(x, self.y_star(x))

    def gradient(self, x):
        """∇Φ."""
        return self.f_x(x, self.y_star(x)) + self.E.T @ self.z_star(x)

    @property
    def matrix(self):
        """M of ∇Φ(x) = Mx + m."""
        J = np.linalg.solve(self.H, self.E)
        return self.P + self.S @ J + (self.S @ J).T + J.T @ self.R @ J

    @property
    def x_star(self):
        return -np.linalg.solve(self.matrix, self.gradient(np.zeros(len(self.a))))

    # a lower level of each client's own

    def local_y_star(self, x):
        return np.stack([self.alone(i).y_star(x) for i in range(self.n)])

    def local_phi(self, x):
        return sum(p * self.alone(i).phi(x) for i, p in enumerate(self.p))

    def local_gradient(self, x, step=None, products=None):
        """∇h; with ``step`` and ``products`` that of the Neumann series in the place of the inverse."""
        total = 0
        for i, p in enumerate(self.p):
            q = self.alone(i)
            y = q.y_star(x)
            z = np.linalg.solve(q.H, q.f_y(x, y))
            if products is not None:
                z = z - np.linalg.matrix_power(np.eye(len(y)) - step * q.H, products + 1) @ z
            total = total + p * (q.f_x(x, y) + q.E.T @ z)
        return total

    @property
    def local_x_star(self):
        return _zero(self.local_gradient, len(self.a))

    def averaged_local(self, x):
        """Σ p_i(∇_x f_i − ∇²_xy g_i H_i⁻¹ ∇_y f_i) at (x, y*(x)): what LFedNest and Local-BSGVR follow."""
        y, each = self.y_star(x), [self.alone(i) for i in range(self.n)]
        return sum(
            p * (q.f_x(x, y) + q.E.T @ np.linalg.solve(q.H, q.f_y(x, y))) for p, q in zip(self.p, each, strict=True)
        )

    @property
    def averaged_local_x_star(self):
        return _zero(self.averaged_local, len(self.a))

    # MeFBO

    def theta_star(self, x, y, nu):
        return np.linalg.solve(self.H + np.eye(len(y)) / nu, self.E @ x + self.e + y / nu)

    def penalty_gradient(self, x, y, c, nu):
        """∇Υ_c at (x, y)."""
        theta = self.theta_star(x, y, nu)
        d_x = self.f_x(x, y) / c - self.E.T @ (y - theta)
        return d_x, self.f_y(x, y) / c + self.g_y(x, y) - (y - theta) / nu


def _zero(affine, size):
    """Where an affine map of x is zero."""
    m = affine(np.zeros(size))
    return -np.linalg.solve(np.stack([affine(row) - m for row in np.eye(size)], axis=1), m)


# --- QM --------------------------------------------------------------------------------------------------------------


class QM(QB):
    def f_y(self, x, y):
        return self.S.T @ x - self.M @ y + self.b

    def value(self, x, y):
        return 0.5 * x @ self.P @ x + self.a @ x + x @ self.S @ y - 0.5 * y @ self.M @ y + self.b @ y

    def y_star(self, x):
        return np.linalg.solve(self.M, self.S.T @ x + self.b)

    def gradient(self, x):
        """∇Φ of Φ = max_y F."""
        return self.f_x(x, self.y_star(x))

    @property
    def matrix(self):
        return self.P + self.S @ np.linalg.solve(self.M, self.S.T)


# --- making them -----------------------------------------------------------------------------------------------------


def _positive(rng, d, low, high):
    """Symmetric, with eigenvalues from ``low`` to ``high``."""
    q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (q * rng.uniform(low, high, d)) @ q.T


def _bilevel_example(rng, dx, dy):
    return {
        "P": _positive(rng, dx, 2.0, 3.0), "a": rng.standard_normal(dx), "R": _positive(rng, dy, 0.0, 0.6),
        "b": rng.standard_normal(dy), "S": 0.2 * rng.standard_normal((dx, dy)), "H": _positive(rng, dy, 1.0, 2.0),
        "E": 0.4 * rng.standard_normal((dy, dx)), "e": rng.standard_normal(dy),
    }  # fmt: skip


def _minimax_example(rng, dx, dy):
    return {
        "P": _positive(rng, dx, 1.0, 2.0), "a": rng.standard_normal(dx), "S": 0.5 * rng.standard_normal((dx, dy)),
        "M": _positive(rng, dy, 1.0, 2.0), "b": rng.standard_normal(dy),
    }  # fmt: skip


def _federation(rng, draw, n, sizes, scatter, sigma, same):
    """Clients around centres of their own (or around one, ``same``), examples scattered around the client's centre."""
    centres = [draw(rng) for _ in range(1 if same else n)] * (n if same else 1)
    data = []
    for i, m in enumerate(np.broadcast_to(sizes, n)):
        rows = {name: [] for name in centres[i]}
        for _ in range(m):
            off = draw(rng)
            for name, centre in centres[i].items():
                rows[name].append((1 - scatter) * centre + scatter * off[name])
        data.append({**{name: np.stack(each) for name, each in rows.items()}, "sigma": np.full(m, float(sigma))})
    return data


def make_bilevel(seed=0, n=N, sizes=1, scatter=0.0, sigma=0.0, same=False, p=None, dx=DX, dy=DY):
    """``sizes`` examples a client; ``scatter`` in [0, 1] makes them differ, ``sigma`` is the level of additive noise."""
    rng = np.random.default_rng(seed)
    data = _federation(rng, lambda rng: _bilevel_example(rng, dx, dy), n, sizes, scatter, sigma, same)
    return QB(data, np.full(n, 1 / n) if p is None else np.asarray(p))


def make_minimax(seed=0, n=N, sizes=1, scatter=0.0, sigma=0.0, same=False, p=None, dx=DX, dy=DY):
    rng = np.random.default_rng(seed)
    data = _federation(rng, lambda rng: _minimax_example(rng, dx, dy), n, sizes, scatter, sigma, same)
    return QM(data, np.full(n, 1 / n) if p is None else np.asarray(p))


# --- TW --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TW:
    """``data[i]`` and ``server``: dicts of one example, A (1 × rows × d), B, a, b."""

    data: list
    server: dict

    @property
    def n(self):
        return len(self.data)

    def clients(self):
        return rk.Clients(self.data, server=self.server)

    @staticmethod
    def loss(data, w):
        A, B, a, b = (data[name][0] for name in "ABab")
        return 0.5 * np.sum((A @ w - B) ** 2) + np.cos(a @ w - b)

    @staticmethod
    def grad(data, w):
        A, B, a, b = (data[name][0] for name in "ABab")
        return A.T @ (A @ w - B) - np.sin(a @ w - b) * a

    @staticmethod
    def hess(data, w):
        A, _, a, b = (data[name][0] for name in "ABab")
        return A.T @ A - np.cos(a @ w - b) * np.outer(a, a)

    def grads(self, w):
        return np.stack([self.grad(each, w) for each in self.data])

    def hessian(self, x, w):
        return sum(x_i * self.hess(each, w) for x_i, each in zip(x, self.data, strict=True))

    def w_star(self, x, w=None):
        w = np.zeros(self.data[0]["a"].shape[1]) if w is None else w
        for _ in range(100):
            w = w - np.linalg.solve(self.hessian(x, w), x @ self.grads(w))
        return w

    def phi(self, x):
        """f_0(w*(x))."""
        return self.loss(self.server, self.w_star(x))

    def dual(self, x):
        """λ*(x)."""
        w = self.w_star(x)
        return -np.linalg.solve(self.hessian(x, w), self.grad(self.server, w))

    def gradient(self, x):
        return self.grads(self.w_star(x)) @ self.dual(x)


def make_weighting(seed=0, n=N, d=3, rows=6, far=(), distance=20):
    """The toy of the PrimalDual paper in small; clients in ``far`` have a minimiser far from all the others'."""
    rng = np.random.default_rng(seed)

    def example():
        while True:
            A, a = rng.standard_normal((rows, d)) / d**0.25, rng.standard_normal(d) / d**0.25
            if np.linalg.eigvalsh(A.T @ A - np.outer(a, a))[0] >= 0.5:
                return {
                    "A": A[None],
                    "B": rng.standard_normal((1, rows)) / rows**0.25,
                    "a": a[None],
                    "b": rng.standard_normal(1),
                }

    server, data = example(), [example() for _ in range(n)]
    for i in far:
        data[i]["B"] = data[i]["B"] + distance * data[i]["A"] @ np.ones(d)
    return TW(data, server)


# --- running ---------------------------------------------------------------------------------------------------------


class Taus(rk.Steps):
    """τ_i as given, one a client; the numbers are traced."""

    table: jnp.ndarray

    def draw(self, key, client, round):
        return self.table[client]


def taus(*table):
    return Taus(1, 4, jnp.asarray(table, jnp.int32))


def nothing(x, y):
    return {}


def path(x, y):
    """``evaluate`` that keeps the iterates themselves."""
    return {f"{name}{k}": v for name, vector in (("x", x), ("y", y)) for k, v in enumerate(vector)}


def path_of(solution, name, size):
    """The iterates kept by :func:`path`: rounds × (lanes ×) size."""
    return np.stack([solution.history[f"{name}{k}"] for k in range(size)], axis=-1)


def run(problem, algorithm, quadratic, rounds, x0=None, y0=None, evaluate=nothing, every=None, **setting):
    """``rk.solve``, or ``rk.solve_many`` if there are lists of algorithms or keys."""
    clients = quadratic if isinstance(quadratic, rk.Clients) else quadratic.clients()
    x0 = problem.x_set.project(jnp.linspace(-0.5, 0.5, DX)) if x0 is None else jax.tree.map(jnp.asarray, x0)
    y0 = problem.y_set.project(jnp.linspace(0.3, -0.3, DY)) if y0 is None else jax.tree.map(jnp.asarray, y0)
    many = isinstance(algorithm, list) or "keys" in setting
    solve = rk.solve_many if many else rk.solve
    return solve(
        problem, algorithm, clients, x0, y0, rounds=rounds, evaluate=evaluate, every=every or rounds, **setting
    )
