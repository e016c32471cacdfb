"""The PyTorch reference that the simulator is measured against: plain loops over rounds, participants, local steps.

Hyper-representation with an MLP d_in-hidden-10, ReLU. x = (W1, b1) is the first layer, y = (W2, b2) the head. Upper
f_i: mean cross-entropy on a batch of the client's validation rows; lower g_i: mean cross-entropy on a batch of its
training rows + RC‖y‖². Tensors on the CPU, float32, data preloaded, batches by random index with replacement,
gradients by `torch.autograd.grad`, second-order products by double backward.

`share_features` (MeFBO, FedNest; off by default) evaluates the first layer once where two losses have the same x and
the same batch. That uses the structure of this one model; the losses f(x, y, batch) and g(x, y, batch) do not have it.

Run: `python -m benchmarks.torch_loop`
"""

import math
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.autograd import grad

RC = 0.05
CLASSES = 10

Params = tuple[Tensor, ...]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Problem:
    """Data of all clients, stacked on axis 0 (client, row, ...), and the initial parameters."""

    lower: Batch
    upper: Batch
    x: Params
    y: Params

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return len(self.lower[0])


@dataclass(frozen=True)
class MeFBORates:
    """Steps (the same on clients and server), penalty c_t = c (t+1)^c_power and proximal parameter ν."""

    x: float = 1.0
    y: float = 0.3
    theta: float = 0.3
    c: float = 2.7
    c_power: float = 0.001
    nu: float = 2.0


@dataclass(frozen=True)
class FedBiORates:
    """Steps of the three variables and the radius of the ball for z."""

    x: float = 0.2
    y: float = 0.1
    z: float = 0.05
    radius: float = math.inf


@dataclass(frozen=True)
class FedNestRates:
    """Step of one local SVRG step, outer step, step of the Neumann series; numbers of SVRG steps and of hops."""

    inner: float = 0.01
    outer: float = 0.02
    hessian: float = 0.02
    inner_steps: int = 25
    hops: int = 5


def make_problem(d_in: int, hidden: int, n_clients: int, per_client: int, seed: int = 0) -> Problem:
    """Gaussian classes; `per_client` training and as many validation rows per client; `nn.Linear` initial values."""
    gen = Generator().manual_seed(seed)
    means = torch.randn(CLASSES, d_in, generator=gen)

    def rows() -> Batch:
        labels = torch.randint(CLASSES, (n_clients, per_client), generator=gen)
        return means[labels] + 2.0 * torch.randn(n_clients, per_client, d_in, generator=gen), labels

    def linear(n_in: int, n_out: int) -> Params:
        bound = n_in**-0.5
        w = torch.empty(n_out, n_in).uniform_(-bound, bound, generator=gen)
        return w, torch.empty(n_out).uniform_(-bound, bound, generator=gen)

    return Problem(lower=rows(), upper=rows(), x=linear(d_in, hidden), y=linear(hidden, CLASSES))


# ------------------------------------------------------------------------------------------------ losses, helpers


def features(x: Params, a: Tensor) -> Tensor:
    """First layer."""
    return F.relu(F.linear(a, *x))


def head_loss(h: Tensor, y: Params, b: Tensor) -> Tensor:
    """Mean cross-entropy of the head on given features."""
    return F.cross_entropy(F.linear(h, *y), b)


def ridge(y: Params) -> Tensor:
    """RC‖y‖²."""
    return RC * (y[0].square().sum() + y[1].square().sum())


def upper(x: Params, y: Params, batch: Batch) -> Tensor:
    """f(x, y; batch)."""
    return head_loss(features(x, batch[0]), y, batch[1])


def lower(x: Params, y: Params, batch: Batch) -> Tensor:
    """g(x, y; batch)."""
    return head_loss(features(x, batch[0]), y, batch[1]) + ridge(y)


def lower_pair(x: Params, y: Params, y_too: Params, batch: Batch, share: bool) -> tuple[Tensor, Tensor]:
    """g at (x, y) and at (x, y_too) on one batch; `share` evaluates the first layer once for both."""
    if not share:
        return lower(x, y, batch), lower(x, y_too, batch)
    h = features(x, batch[0])
    return head_loss(h, y, batch[1]) + ridge(y), head_loss(h, y_too, batch[1]) + ridge(y_too)


def leaf(v: Params) -> Params:
    """The same values, as leaves that gradients are taken at."""
    return tuple(a.detach().requires_grad_() for a in v)


def step(v: Params, rate: float, h: Iterable[Tensor]) -> Params:
    """v − rate·h."""
    return tuple(a - rate * d for a, d in zip(v, h, strict=True))


def zeros(v: Params) -> Params:
    """Zeros shaped like v."""
    return tuple(torch.zeros_like(a) for a in v)


def accumulate(total: Params, h: Iterable[Tensor], weight: float) -> None:
    """Total += weight·h, in place."""
    for s, d in zip(total, h, strict=True):
        s.add_(d, alpha=weight)


def dot(u: Params, v: Params) -> Tensor:
    """⟨u, v⟩."""
    return (u[0] * v[0]).sum() + (u[1] * v[1]).sum()


def project(v: Params, radius: float) -> Params:
    """Projection on the ball around 0."""
    if math.isinf(radius):
        return v
    scale = (radius / torch.sqrt(dot(v, v))).clamp(max=1.0)
    return tuple(a * scale for a in v)


def draw(data: Batch, client: int, batch: int, gen: Generator) -> Batch:
    """Minibatch of the client's own rows, with replacement."""
    a, b = data[0][client], data[1][client]
    index = torch.randint(len(b), (batch,), generator=gen)
    return a[index], b[index]


def participants(problem: Problem, P: int, gen: Generator) -> list[int]:
    """P clients, uniform without replacement."""
    return torch.randperm(problem.n_clients, generator=gen)[:P].tolist()


# ----------------------------------------------------------------------------------------------------- directions


def mefbo_direction(
    x: Params, y: Params, theta: Params, f_batch: Batch, g_batch: Batch, c: float, nu: float, share: bool = False
) -> tuple[Params, Params, Params]:
    """(h_x, h_y, h_θ): the gradient of f/c + g(x,y) − g(x,θ) − ‖y−θ‖²/(2ν), with the θ part negated."""
    x, y, theta = leaf(x), leaf(y), leaf(theta)
    g_y, g_theta = lower_pair(x, y, theta, g_batch, share)
    distance = (y[0] - theta[0]).square().sum() + (y[1] - theta[1]).square().sum()
    value = upper(x, y, f_batch) / c + g_y - g_theta - distance / (2 * nu)
    h = grad(value, (*x, *y, *theta))
    return h[:2], h[2:4], tuple(-d for d in h[4:])


def lower_gradient(x: Params, y: Params, g_batch: Batch) -> Params:
    """∇_y g."""
    y = leaf(y)
    return grad(lower(x, y, g_batch), y)


def upper_gradient_y(x: Params, y: Params, f_batch: Batch) -> Params:
    """∇_y f."""
    y = leaf(y)
    return grad(upper(x, y, f_batch), y)


def hessian_product(x: Params, y: Params, z: Params, g_batch: Batch) -> Params:
    """∇²_yy g z."""
    y = leaf(y)
    return grad(grad(lower(x, y, g_batch), y, create_graph=True), y, grad_outputs=z)


def z_direction(x: Params, y: Params, z: Params, f_batch: Batch, g_batch: Batch) -> Params:
    """∇²_yy g z − ∇_y f, as ∇_y of ⟨∇_y g, z⟩ − f."""
    y = leaf(y)
    g_y = grad(lower(x, y, g_batch), y, create_graph=True)
    return grad(dot(g_y, z) - upper(x, y, f_batch), y)


def x_direction(x: Params, y: Params, z: Params, f_batch: Batch, g_batch: Batch) -> Params:
    """∇_x f − ∇²_xy g z, as ∇_x of f − ⟨∇_y g, z⟩."""
    x, y = leaf(x), leaf(y)
    g_y = grad(lower(x, y, g_batch), y, create_graph=True)
    return grad(upper(x, y, f_batch) - dot(g_y, z), x)


def svrg_correction(x: Params, y_i: Params, y: Params, g_batch: Batch, share: bool = False) -> Params:
    """∇_y g(x,y_i) − ∇_y g(x,y) on one batch, from one backward pass."""
    y_i, y = leaf(y_i), leaf(y)
    g_i, g_0 = lower_pair(x, y_i, y, g_batch, share)
    h = grad(g_i - g_0, (*y_i, *y))
    return tuple(a + b for a, b in zip(h[:2], h[2:], strict=True))


# ------------------------------------------------------------------------------------------------------ algorithms


def mefbo_rounds(
    problem: Problem,
    rounds: int,
    P: int = 10,
    batch: int = 64,
    tau: int = 1,
    rates: MeFBORates | None = None,
    *,
    seed: int = 0,
    share_features: bool = False,
) -> tuple[Params, Params, Params]:
    """MeFBO; (x, y, θ) after the last round. The server takes the mean of the clients' averaged directions."""
    rates = rates or MeFBORates()
    gen = Generator().manual_seed(seed)
    x, y, theta = problem.x, problem.y, problem.y
    for t in range(rounds):
        c = rates.c * (t + 1) ** rates.c_power
        total_x, total_y, total_theta = zeros(x), zeros(y), zeros(theta)
        for i in participants(problem, P, gen):
            x_i, y_i, theta_i = x, y, theta
            for k in range(tau):
                f_batch, g_batch = draw(problem.upper, i, batch, gen), draw(problem.lower, i, batch, gen)
                h_x, h_y, h_theta = mefbo_direction(x_i, y_i, theta_i, f_batch, g_batch, c, rates.nu, share_features)
                accumulate(total_x, h_x, 1 / (P * tau))
                accumulate(total_y, h_y, 1 / (P * tau))
                accumulate(total_theta, h_theta, 1 / (P * tau))
                if k + 1 < tau:  # only directions are sent, so the last local step would go unused
                    x_i, y_i = step(x_i, rates.x, h_x), step(y_i, rates.y, h_y)
                    theta_i = step(theta_i, rates.theta, h_theta)
        x, y, theta = step(x, rates.x, total_x), step(y, rates.y, total_y), step(theta, rates.theta, total_theta)
    return x, y, theta


def fedbio_rounds(
    problem: Problem,
    rounds: int,
    P: int = 10,
    batch: int = 64,
    tau: int = 1,
    rates: FedBiORates | None = None,
    *,
    seed: int = 0,
) -> tuple[Params, Params, Params]:
    """FedBiO with five independent batches per local step; (x, y, z) after the last round, means of the iterates."""
    rates = rates or FedBiORates()
    gen = Generator().manual_seed(seed)
    x, y, z = problem.x, problem.y, zeros(problem.y)
    for _ in range(rounds):
        mean_x, mean_y, mean_z = zeros(x), zeros(y), zeros(z)
        for i in participants(problem, P, gen):
            x_i, y_i, z_i = x, y, z
            for _ in range(tau):
                g_batch, g_batch_x, g_batch_z = (draw(problem.lower, i, batch, gen) for _ in range(3))
                f_batch_x, f_batch_z = (draw(problem.upper, i, batch, gen) for _ in range(2))
                h_y = lower_gradient(x_i, y_i, g_batch)
                h_x = x_direction(x_i, y_i, z_i, f_batch_x, g_batch_x)
                h_z = z_direction(x_i, y_i, z_i, f_batch_z, g_batch_z)
                x_i, y_i = step(x_i, rates.x, h_x), step(y_i, rates.y, h_y)
                z_i = project(step(z_i, rates.z, h_z), rates.radius)
            accumulate(mean_x, x_i, 1 / P)
            accumulate(mean_y, y_i, 1 / P)
            accumulate(mean_z, z_i, 1 / P)
        x, y, z = mean_x, mean_y, mean_z
    return x, y, z


def fednest_rounds(
    problem: Problem,
    rounds: int,
    P: int = 10,
    batch: int = 64,
    tau: int = 1,
    rates: FedNestRates | None = None,
    *,
    seed: int = 0,
    share_features: bool = False,
) -> tuple[Params, Params]:
    """FedNest, T = 1, full Neumann series; (x, y) after the last round. `tau` counts outer steps and must be 1.

    One set of participants for the inner problem, one for the series and the outer step. The first outer SVRG step
    has a zero correction, x_i = x − outer·h for every client, so with tau = 1 the server takes it.
    """
    if tau != 1:
        raise ValueError("fednest_rounds is written for one outer step")
    rates = rates or FedNestRates()
    gen = Generator().manual_seed(seed)
    x, y = problem.x, problem.y
    for _ in range(rounds):
        clients = participants(problem, P, gen)
        q = zeros(y)
        for i in clients:
            accumulate(q, lower_gradient(x, y, draw(problem.lower, i, batch, gen)), 1 / P)
        mean_y = zeros(y)
        for i in clients:
            y_i = y
            for _ in range(rates.inner_steps):
                correction = svrg_correction(x, y_i, y, draw(problem.lower, i, batch, gen), share_features)
                y_i = step(y_i, rates.inner, (a + b for a, b in zip(correction, q, strict=True)))
            accumulate(mean_y, y_i, 1 / P)
        y = mean_y

        clients = participants(problem, P, gen)
        power = zeros(y)
        for i in clients:
            accumulate(power, upper_gradient_y(x, y, draw(problem.upper, i, batch, gen)), 1 / P)
        series = tuple(a.clone() for a in power)
        for _ in range(rates.hops):
            product = zeros(y)
            for i in clients:
                accumulate(product, hessian_product(x, y, power, draw(problem.lower, i, batch, gen)), 1 / P)
            power = step(power, rates.hessian, product)
            accumulate(series, power, 1.0)
        z = tuple(rates.hessian * a for a in series)

        h = zeros(x)
        for i in clients:
            f_batch, g_batch = draw(problem.upper, i, batch, gen), draw(problem.lower, i, batch, gen)
            accumulate(h, x_direction(x, y, z, f_batch, g_batch), 1 / P)
        x = step(x, rates.outer, h)
    return x, y


# ---------------------------------------------------------------------------------------------------------- timing


def time_rounds(
    fn: Callable[..., Any],
    problem: Problem,
    rounds: int = 20,
    repetitions: int = 5,
    warmup: int = 2,
    **options: Any,
) -> float:
    """Seconds per round: `warmup` rounds first, then the median over `repetitions` runs of `rounds` rounds."""
    fn(problem, rounds=warmup, **options)
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        fn(problem, rounds=rounds, **options)
        seconds.append((time.perf_counter() - start) / rounds)
    return statistics.median(seconds)


def main() -> None:
    """Print rounds per second of the three loops on the two sizes with one and two threads."""
    cases: list[tuple[str, Callable[..., Any], int, dict[str, Any]]] = [
        ("MeFBO", mefbo_rounds, 20, {}),
        ("MeFBO, shared features", mefbo_rounds, 20, {"share_features": True}),
        ("FedBiO", fedbio_rounds, 20, {}),
        ("FedNest", fednest_rounds, 4, {}),
        ("FedNest, shared features", fednest_rounds, 4, {"share_features": True}),
    ]
    sizes = [  # name, rounds per repetition in units of the cases' own, problem
        ("64-32-10, n=20, 45+45 rows", 4, {"d_in": 64, "hidden": 32, "n_clients": 20, "per_client": 45}),
        ("784-200-10, n=100, 300+300 rows", 1, {"d_in": 784, "hidden": 200, "n_clients": 100, "per_client": 300}),
    ]
    print(f"torch {torch.__version__}, Python {platform.python_version()}; P=10, batch 64, tau=1")
    for size, longer, options in sizes:
        problem = make_problem(**options, seed=0)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for name, fn, rounds, extra in cases:
                seconds = time_rounds(fn, problem, longer * rounds, P=10, batch=64, tau=1, **extra)
                print(f"{size:33s} threads={threads}  {name:25s} {1 / seconds:8.2f} rounds/s", flush=True)


if __name__ == "__main__":
    main()
