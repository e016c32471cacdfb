"""Small smooth non-quadratic finite-sum problems, each given twice: NumPy with hand-coded derivatives, and JAX.

Data are dicts of arrays with a leading example axis ("rows"). Every loss is the mean over the given rows plus terms
that are free of the rows. NumPy methods take row indices into the pool of the split, JAX losses take the batch itself.
Writing p = d·y, q = e·x and so on for the products of one row:

    upper      f = mean[ log cosh(p − q − t) + ½ sin p cos q ] + ½ F_XX ‖x‖² + F_YY Σ sin y
    lower      g = mean[ ½‖Qy − s‖² + log cosh(c·y − sin(b·x)) ] + ½ MU ‖y‖² + G_COS Σ cos y + G_XY sin(x)·Ky
    minimax    f = mean[ sin(q + s) + p tanh q − log cosh(p − s) ] + ½ F_XX ‖x‖² − ½ MU ‖y‖²,   q = a·x, p = b·y
    weighting  f = mean[ log cosh(a·w − s) + G_COS cos(a·w) ] + ½ MU ‖w‖²
"""

import jax.numpy as jnp
import numpy as np

DX, DY = 3, 4
F_XX, F_YY, MU, G_COS, G_XY = 0.1, 0.05, 1.0, 0.1, 0.2
K = np.sin(1.0 + np.arange(DX)[:, None] + 2.0 * np.arange(DY))  # a fixed DX x DY coupling, the same for everybody


# --- the losses in JAX -----------------------------------------------------------------------------------------------


def upper(x, y, batch):
    p, q = batch["d"] @ y, batch["e"] @ x
    rows = jnp.log(jnp.cosh(p - q - batch["t"])) + 0.5 * jnp.sin(p) * jnp.cos(q)
    return rows.mean() + 0.5 * F_XX * x @ x + F_YY * jnp.sin(y).sum()


def lower(x, y, batch):
    residual = batch["Q"] @ y - batch["s"]
    rows = 0.5 * (residual**2).sum(axis=1) + jnp.log(jnp.cosh(batch["c"] @ y - jnp.sin(batch["b"] @ x)))
    return rows.mean() + 0.5 * MU * y @ y + G_COS * jnp.cos(y).sum() + G_XY * jnp.sin(x) @ (K @ y)


def objective(x, y, batch):
    q, p = batch["a"] @ x, batch["b"] @ y
    rows = jnp.sin(q + batch["s"]) + p * jnp.tanh(q) - jnp.log(jnp.cosh(p - batch["s"]))
    return rows.mean() + 0.5 * F_XX * x @ x - 0.5 * MU * y @ y


def weighting_loss(w, batch):
    q = batch["a"] @ w
    return (jnp.log(jnp.cosh(q - batch["s"])) + G_COS * jnp.cos(q)).mean() + 0.5 * MU * w @ w


# --- the derivatives by hand, in NumPy -------------------------------------------------------------------------------


def sech2(u):
    return 1.0 / np.cosh(u) ** 2


class SmoothBilevel:
    """f on rows of the upper pool, g on rows of the lower pool; g is strongly convex in y."""

    dx, dy = DX, DY

    def __init__(self, upper, lower):
        self.upper, self.lower = upper, lower

    def f_x(self, x, y, rows):
        d, e, t = (self.upper[name][rows] for name in "det")
        p, q = d @ y, e @ x
        return (-np.tanh(p - q - t) - 0.5 * np.sin(p) * np.sin(q)) @ e / len(rows) + F_XX * x

    def f_y(self, x, y, rows):
        d, e, t = (self.upper[name][rows] for name in "det")
        p, q = d @ y, e @ x
        return (np.tanh(p - q - t) + 0.5 * np.cos(p) * np.cos(q)) @ d / len(rows) + F_YY * np.cos(y)

    def g_x(self, x, y, rows):
        b, c = self.lower["b"][rows], self.lower["c"][rows]
        w = c @ y - np.sin(b @ x)
        return -(np.tanh(w) * np.cos(b @ x)) @ b / len(rows) + G_XY * np.cos(x) * (K @ y)

    def g_y(self, x, y, rows):
        b, c, Q, s = (self.lower[name][rows] for name in "bcQs")
        w = c @ y - np.sin(b @ x)
        quadratic = sum(Q_r.T @ (Q_r @ y - s_r) for Q_r, s_r in zip(Q, s, strict=True))
        return (quadratic + np.tanh(w) @ c) / len(rows) + MU * y - G_COS * np.sin(y) + G_XY * K.T @ np.sin(x)

    def g_yy(self, x, y, rows):
        b, c, Q = (self.lower[name][rows] for name in "bcQ")
        w = c @ y - np.sin(b @ x)
        quadratic = sum(Q_r.T @ Q_r for Q_r in Q)
        return (quadratic + c.T @ (sech2(w)[:, None] * c)) / len(rows) + MU * np.eye(DY) - G_COS * np.diag(np.cos(y))

    def g_xy(self, x, y, rows):
        """The DX x DY matrix of ∂²g/∂x_a∂y_b."""
        b, c = self.lower["b"][rows], self.lower["c"][rows]
        w = c @ y - np.sin(b @ x)
        return -b.T @ ((sech2(w) * np.cos(b @ x))[:, None] * c) / len(rows) + G_XY * np.cos(x)[:, None] * K


class SmoothMinimax:
    """min over x, max over y of f on rows of the upper pool; strongly concave in y."""

    dx, dy = DX, DY

    def __init__(self, upper):
        self.upper = upper

    def f_x(self, x, y, rows):
        a, b, s = (self.upper[name][rows] for name in "abs")
        q, p = a @ x, b @ y
        return (np.cos(q + s) + p * sech2(q)) @ a / len(rows) + F_XX * x

    def f_y(self, x, y, rows):
        a, b, s = (self.upper[name][rows] for name in "abs")
        q, p = a @ x, b @ y
        return (np.tanh(q) - np.tanh(p - s)) @ b / len(rows) - MU * y


class SmoothWeighting:
    """Client losses on rows of the lower pool, the server's validation loss on rows of the server pool."""

    d = DY

    def __init__(self, lower, server):
        self.lower, self.server = lower, server

    def loss(self, w, rows):
        a, s = self.lower["a"][rows], self.lower["s"][rows]
        return np.mean(np.log(np.cosh(a @ w - s)) + G_COS * np.cos(a @ w)) + 0.5 * MU * w @ w

    def grad(self, w, rows):
        a, s = self.lower["a"][rows], self.lower["s"][rows]
        return (np.tanh(a @ w - s) - G_COS * np.sin(a @ w)) @ a / len(rows) + MU * w

    def hess(self, w, rows):
        a, s = self.lower["a"][rows], self.lower["s"][rows]
        curvature = sech2(a @ w - s) - G_COS * np.cos(a @ w)
        return a.T @ (curvature[:, None] * a) / len(rows) + MU * np.eye(self.d)

    def grad0(self, w, rows):
        a, s = self.server["a"][rows], self.server["s"][rows]
        return (np.tanh(a @ w - s) - G_COS * np.sin(a @ w)) @ a / len(rows) + MU * w


# --- clients ---------------------------------------------------------------------------------------------------------


def _pool(rng, n_clients, sizes, shapes):
    """A pool of rows in random order and who owns which: client i's rows are centred at a point of its own.

    `shapes`: name -> (shape of one row's entry, scale of the noise around the client's centre).
    """
    sizes = rng.integers(5, 13, n_clients) if sizes is None else np.asarray(sizes)
    owner = rng.permutation(np.repeat(np.arange(n_clients), sizes))
    data = {}
    for name, (shape, scale) in shapes.items():
        centre = 0.5 * scale * rng.standard_normal((n_clients, *shape))
        data[name] = centre[owner] + scale * rng.standard_normal((len(owner), *shape))
    return data, [np.flatnonzero(owner == i) for i in range(n_clients)]


def make_bilevel(n_clients, seed, sizes=None):
    """(problem, {"upper": (data, rows of each client), "lower": (data, rows of each client)}).

    `sizes` are those of the upper split; the lower split has them in reverse, so that a client's two sizes differ.
    """
    rng = np.random.default_rng(seed)
    f = _pool(rng, n_clients, sizes, {"d": ((DY,), 0.6), "e": ((DX,), 0.6), "t": ((), 1.0)})
    shapes = {"Q": ((DY, DY), 0.3), "s": ((DY,), 1.0), "c": ((DY,), 0.5), "b": ((DX,), 0.7)}
    g = _pool(rng, n_clients, None if sizes is None else sizes[::-1], shapes)
    return SmoothBilevel(f[0], g[0]), {"upper": f, "lower": g}


def make_minimax(n_clients, seed, sizes=None):
    """(problem, {"upper": (data, rows of each client)})."""
    rng = np.random.default_rng(seed)
    f = _pool(rng, n_clients, sizes, {"a": ((DX,), 0.6), "b": ((DY,), 0.6), "s": ((), 1.0)})
    return SmoothMinimax(f[0]), {"upper": f}


def make_weighting(n_clients, seed, sizes=None, server_size=9):
    """(problem, {"lower": (data, rows of each client), "server": (data, [all its rows])})."""
    rng = np.random.default_rng(seed)
    shapes = {"a": ((DY,), 0.6), "s": ((), 1.0)}
    clients = _pool(rng, n_clients, sizes, shapes)
    server = _pool(rng, 1, [server_size], shapes)
    return SmoothWeighting(clients[0], server[0]), {"lower": clients, "server": server}
