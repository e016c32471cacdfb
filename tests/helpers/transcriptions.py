"""The algorithms in plain NumPy, written from the papers: loops over clients and local steps, float64 vectors.

Every function takes (problem, draws, x0, y0, *, rounds, hyperparameters) and returns a list with the server's state
after each round. `problem` is one of small_problems.py; `draws` replays the random choices:

    draws.n, draws.p                     number of clients; their weights p_i, which sum to 1
    draws.participants(t, fresh=0)       sorted ids of the clients of round t (fresh = m > 0: its m-th fresh draw)
    draws.steps(t, i), draws.max_steps   local steps τ_i of client i in round t, and their upper bound
    draws.rows(split, i, t, step, name, size=None)       rows of a minibatch; size None: the ordinary batch size

A direction taken at local point k of round t uses the batch of (t, step=k). A rate may be a number or a function of
the round t. What clients keep between rounds is returned stacked over ALL clients.
"""

import numpy as np

# --- weights, projections, schedules ---------------------------------------------------------------------------------


def average(draws, values):
    """Mean of iterates: Σ_{i∈C} p_i v_i / Σ_{j∈C} p_j, for values = {i: v_i}."""
    return sum(draws.p[i] * v for i, v in values.items()) / sum(draws.p[i] for i in values)


def direction(draws, values):
    """Unbiased mean of directions: Σ_{i∈C} (n/P) p_i v_i, for values = {i: v_i}."""
    return sum(draws.n / len(values) * draws.p[i] * v for i, v in values.items())


def identity(v):
    return v


def ball(z, r):
    """P_r(z) = z min(1, r/‖z‖)."""
    norm = np.linalg.norm(z)
    return z if norm <= r else z * (r / norm)


def simplex(u):
    """Euclidean projection on {u >= 0, Σu = 1}, by sorting."""
    descending = np.sort(u)[::-1]
    for j in range(1, len(u) + 1):
        candidate = (descending[:j].sum() - 1) / j
        if descending[j - 1] - candidate > 0:
            shift = candidate
    return np.maximum(u - shift, 0)


def at(rate, t):
    return rate(t) if callable(rate) else rate


def draw(draws, split, i, t, k, name, times=1):
    """Rows of a minibatch of `times` the ordinary size."""
    rows = draws.rows(split, i, t, k, name)
    return rows if times == 1 else draws.rows(split, i, t, k, name, size=times * len(rows))


# --- bilevel, one global lower level ---------------------------------------------------------------------------------


def batches(draws, i, t, k, tie_batches, times=1):
    """The five batches (ξ_f, ξ_g), ζ, (ψ_f, ψ_g) of the x, y and z directions at local point k of round t."""
    x, y, z = "xxx" if tie_batches else "xyz"
    pairs = [("upper", x), ("lower", x), ("lower", y), ("upper", z), ("lower", z)]
    return [draw(draws, split, i, t, k, name, times) for split, name in pairs]


def directions(problem, x, y, z, batch):
    """D_x = ∇_x f − ∇²_xy g z,   D_y = ∇_y g,   D_z = ∇²_yy g z − ∇_y f."""
    xi_f, xi_g, zeta, psi_f, psi_g = batch
    D_x = problem.f_x(x, y, xi_f) - problem.g_xy(x, y, xi_g) @ z
    D_y = problem.g_y(x, y, zeta)
    D_z = problem.g_yy(x, y, psi_g) @ z - problem.f_y(x, y, psi_f)
    return D_x, D_y, D_z


def mefbo(
    problem, draws, x0, y0, *, rounds, eta_x, eta_y, eta_theta, gamma_x, gamma_y, gamma_theta, c, nu,
    theta0=None, project_x=identity, project_y=identity,
):  # fmt: skip
    """MeFBO, Algorithm 1. Here eta: client, gamma: server steps (the paper's λ), nu: proximal (the paper's γ)."""
    x, y, theta = x0, y0, y0 if theta0 is None else theta0
    history = []
    for t in range(rounds):
        c_t = at(c, t)
        h_x, h_y, h_theta = {}, {}, {}
        for i in draws.participants(t):
            tau = draws.steps(t, i)
            x_i, y_i, theta_i = x, y, theta
            h_x[i], h_y[i], h_theta[i] = np.zeros_like(x), np.zeros_like(y), np.zeros_like(y)
            for k in range(tau):
                xi, zeta = draws.rows("upper", i, t, k, "x"), draws.rows("lower", i, t, k, "x")
                h_theta_k = problem.g_y(x_i, theta_i, zeta) + (theta_i - y_i) / nu
                h_y_k = problem.f_y(x_i, y_i, xi) / c_t + problem.g_y(x_i, y_i, zeta) - (y_i - theta_i) / nu
                h_x_k = problem.f_x(x_i, y_i, xi) / c_t + problem.g_x(x_i, y_i, zeta) - problem.g_x(x_i, theta_i, zeta)
                theta_i = theta_i - at(eta_theta, t) * h_theta_k
                x_i = x_i - at(eta_x, t) * h_x_k
                y_i = y_i - at(eta_y, t) * h_y_k
                h_x[i], h_y[i], h_theta[i] = h_x[i] + h_x_k / tau, h_y[i] + h_y_k / tau, h_theta[i] + h_theta_k / tau
        theta = project_y(theta - at(gamma_theta, t) * direction(draws, h_theta))
        x = project_x(x - at(gamma_x, t) * direction(draws, h_x))
        y = project_y(y - at(gamma_y, t) * direction(draws, h_y))
        history.append({"x": x, "y": y, "theta": theta})
    return history


def fedbio(
    problem, draws, x0, y0, *, rounds, eta_x, eta_y, eta_z, r=np.inf, z0=None, tie_batches=False,
    project_x=identity, project_y=identity,
):  # fmt: skip
    """FedBiO, Algorithm 2 and eq. 6 (the paper's η, γ, τ are eta_x, eta_y, eta_z, its u is z)."""
    x, y, z = x0, y0, np.zeros_like(y0) if z0 is None else z0
    history = []
    for t in range(rounds):
        x_end, y_end, z_end = {}, {}, {}
        for i in draws.participants(t):
            x_i, y_i, z_i = x, y, z
            for k in range(draws.steps(t, i)):
                x_i, y_i = project_x(x_i), project_y(y_i)
                D_x, D_y, D_z = directions(problem, x_i, y_i, z_i, batches(draws, i, t, k, tie_batches))
                y_i = y_i - at(eta_y, t) * D_y
                x_i = x_i - at(eta_x, t) * D_x
                z_i = ball(z_i - at(eta_z, t) * D_z, r)
            x_end[i], y_end[i], z_end[i] = x_i, y_i, z_i
        x, y, z = project_x(average(draws, x_end)), project_y(average(draws, y_end)), average(draws, z_end)
        history.append({"x": x, "y": y, "z": z})
    return history


def fedbioacc(
    problem, draws, x0, y0, *, rounds, eta_x, eta_y, eta_z, delta, u, c_x, c_y, c_z, first_batch=1,
    r=np.inf, z0=None, tie_batches=False, project_x=identity, project_y=identity,
):  # fmt: skip
    """FedBiOAcc, Algorithm 1 (the paper's ν, ω, q are d_x, d_y, d_z, its α_t is delta_s)."""
    x, y, z = x0, y0, np.zeros_like(y0) if z0 is None else z0
    d_x = d_y = d_z = None
    history = []
    for t in range(rounds):
        C = draws.participants(t)
        I = draws.steps(t, C[0])
        x_i, y_i, z_i = dict.fromkeys(C, x), dict.fromkeys(C, y), dict.fromkeys(C, z)
        d_x_i, d_y_i, d_z_i = dict.fromkeys(C, d_x), dict.fromkeys(C, d_y), dict.fromkeys(C, d_z)
        if t == 0:
            for i in C:
                first = batches(draws, i, 0, 0, tie_batches, first_batch)
                d_x_i[i], d_y_i[i], d_z_i[i] = directions(problem, x, y, z, first)
        for j in range(1, I + 1):
            s = t * I + j
            sync = s % I == 0
            delta_s = delta / (u + s) ** (1 / 3)
            x_old, y_old, z_old = dict(x_i), dict(y_i), dict(z_i)
            for i in C:
                y_i[i] = y_old[i] - at(eta_y, t) * delta_s * d_y_i[i]
                x_i[i] = x_old[i] - at(eta_x, t) * delta_s * d_x_i[i]
                if not sync:
                    x_i[i], y_i[i] = project_x(x_i[i]), project_y(y_i[i])
                z_i[i] = ball(z_old[i] - at(eta_z, t) * delta_s * d_z_i[i], r)
            if sync:
                x, y, z = project_x(average(draws, x_i)), project_y(average(draws, y_i)), average(draws, z_i)
                x_i, y_i, z_i = dict.fromkeys(C, x), dict.fromkeys(C, y), dict.fromkeys(C, z)
            for i in C:
                batch = batches(draws, i, t + 1, 0, tie_batches) if sync else batches(draws, i, t, j, tie_batches)
                D_x, D_y, D_z = directions(problem, x_i[i], y_i[i], z_i[i], batch)
                O_x, O_y, O_z = directions(problem, x_old[i], y_old[i], z_old[i], batch)
                d_x_i[i] = D_x + (1 - c_x * delta_s**2) * (d_x_i[i] - O_x)
                d_y_i[i] = D_y + (1 - c_y * delta_s**2) * (d_y_i[i] - O_y)
                d_z_i[i] = D_z + (1 - c_z * delta_s**2) * (d_z_i[i] - O_z)
            if sync:
                d_x, d_y, d_z = average(draws, d_x_i), average(draws, d_y_i), average(draws, d_z_i)
        history.append({"x": x, "y": y, "z": z, "d_x": d_x, "d_y": d_y, "d_z": d_z})
    return history


def simfbo_client(problem, draws, i, t, x, y, z, eta_x, eta_y, eta_z, tie_batches, project_x, project_y):
    """τ_i simultaneous local steps with a_i^{t,k} = 1; the sums q of the directions."""
    x_i, y_i, z_i = x, y, z
    q_x, q_y, q_z = np.zeros_like(x), np.zeros_like(y), np.zeros_like(z)
    for k in range(draws.steps(t, i)):
        D_x, D_y, D_z = directions(problem, x_i, y_i, z_i, batches(draws, i, t, k, tie_batches))
        x_i, y_i = project_x(x_i - at(eta_x, t) * D_x), project_y(y_i - at(eta_y, t) * D_y)
        z_i = z_i - at(eta_z, t) * D_z
        q_x, q_y, q_z = q_x + D_x, q_y + D_y, q_z + D_z
    return q_x, q_y, q_z


def simfbo(
    problem, draws, x0, y0, *, rounds, eta_x, eta_y, eta_z, gamma_x, gamma_y, gamma_z, r=np.inf, z0=None,
    tie_batches=False, project_x=identity, project_y=identity,
):  # fmt: skip
    """SimFBO (its v is z)."""
    x, y, z = x0, y0, np.zeros_like(y0) if z0 is None else z0
    history = []
    for t in range(rounds):
        q_x, q_y, q_z = {}, {}, {}
        for i in draws.participants(t):
            q_x[i], q_y[i], q_z[i] = simfbo_client(
                problem, draws, i, t, x, y, z, eta_x, eta_y, eta_z, tie_batches, project_x, project_y
            )  # fmt: skip
        x = project_x(x - at(gamma_x, t) * direction(draws, q_x))
        y = project_y(y - at(gamma_y, t) * direction(draws, q_y))
        z = ball(z - at(gamma_z, t) * direction(draws, q_z), r)
        history.append({"x": x, "y": y, "z": z})
    return history


def rho_of_round(draws, t, rho):
    """ρ^t = Σ_j p_j ‖a_j‖₁ over all clients, or its estimate from the active ones, or a constant; ‖a_j‖₁ = τ_j."""
    if rho == "all":
        return sum(draws.p[j] * draws.steps(t, j) for j in range(draws.n))
    if rho == "active":
        return direction(draws, {i: draws.steps(t, i) for i in draws.participants(t)})
    return rho


def shrofbo(
    problem, draws, x0, y0, *, rounds, eta_x, eta_y, eta_z, gamma_x, gamma_y, gamma_z, rho="all", r=np.inf, z0=None,
    tie_batches=False, project_x=identity, project_y=identity,
):  # fmt: skip
    """ShroFBO: SimFBO with h_i = q_i/‖a_i‖₁ and server steps scaled by ρ^t."""
    x, y, z = x0, y0, np.zeros_like(y0) if z0 is None else z0
    history = []
    for t in range(rounds):
        h_x, h_y, h_z = {}, {}, {}
        for i in draws.participants(t):
            q_x, q_y, q_z = simfbo_client(
                problem, draws, i, t, x, y, z, eta_x, eta_y, eta_z, tie_batches, project_x, project_y
            )  # fmt: skip
            tau = draws.steps(t, i)
            h_x[i], h_y[i], h_z[i] = q_x / tau, q_y / tau, q_z / tau
        rho_t = rho_of_round(draws, t, rho)
        x = project_x(x - rho_t * at(gamma_x, t) * direction(draws, h_x))
        y = project_y(y - rho_t * at(gamma_y, t) * direction(draws, h_y))
        z = ball(z - rho_t * at(gamma_z, t) * direction(draws, h_z), r)
        history.append({"x": x, "y": y, "z": z})
    return history


def asfbo(
    problem, draws, x0, y0, *, rounds, eta_x, eta_y, eta_z, gamma_x, gamma_y, gamma_z, beta, varrho, eps,
    clip_x=(0.0, np.inf), clip_y=(0.0, np.inf), clip_z=(0.0, np.inf), rho="all", r=np.inf, z0=None, tie_batches=False,
    storm=False, project_x=identity, project_y=identity,
):  # fmt: skip
    """ASFBO, Algorithm 1 and eqs. 15-30 (eps is the ρ of eq. 28; m_x, m_y, m_z are the paper's u, v, w)."""
    x, y, z = x0, y0, np.zeros_like(y0) if z0 is None else z0
    s_x = s_y = s_z = 0.0
    history = []
    for t in range(rounds):
        h_x, h_y, h_z = {}, {}, {}
        for i in draws.participants(t):
            tau = draws.steps(t, i)
            x_i, y_i, z_i = x, y, z
            m_x, m_y, m_z = directions(problem, x, y, z, batches(draws, i, t, 0, tie_batches))
            q_x, q_y, q_z = m_x, m_y, m_z
            for k in range(tau - 1):  # the last step moves the client's point, but nothing reads it any more
                x_k, y_k, z_k = x_i, y_i, z_i
                x_i, y_i = project_x(x_k - at(eta_x, t) * m_x), project_y(y_k - at(eta_y, t) * m_y)
                z_i = z_k - at(eta_z, t) * m_z
                batch = batches(draws, i, t, k + 1, tie_batches)
                D_x, D_y, D_z = directions(problem, x_i, y_i, z_i, batch)
                if storm:  # eq. 21
                    O_x, O_y, O_z = directions(problem, x_k, y_k, z_k, batch)
                    m_x = D_x + (1 - beta) * (m_x - O_x)
                    m_y = D_y + (1 - beta) * (m_y - O_y)
                    m_z = D_z + (1 - beta) * (m_z - O_z)
                else:  # eq. 20
                    m_x = beta * D_x + (1 - beta) * m_x
                    m_y = beta * D_y + (1 - beta) * m_y
                    m_z = beta * D_z + (1 - beta) * m_z
                q_x, q_y, q_z = q_x + m_x, q_y + m_y, q_z + m_z
            h_x[i], h_y[i], h_z[i] = q_x / tau, q_y / tau, q_z / tau  # ‖a_i‖₁ = τ_i
        h_x, h_y, h_z = direction(draws, h_x), direction(draws, h_y), direction(draws, h_z)
        varrho_t = at(varrho, t)
        s_x = varrho_t * s_x + (1 - varrho_t) * np.linalg.norm(h_x)
        s_y = varrho_t * s_y + (1 - varrho_t) * np.linalg.norm(h_y)
        s_z = varrho_t * s_z + (1 - varrho_t) * np.linalg.norm(h_z)
        gamma_x_t = np.clip(at(gamma_x, t) / (s_x + eps), *clip_x)
        gamma_y_t = np.clip(at(gamma_y, t) / (s_y + eps), *clip_y)
        gamma_z_t = np.clip(at(gamma_z, t) / (s_z + eps), *clip_z)
        rho_t = rho_of_round(draws, t, rho)
        x = project_x(x - rho_t * gamma_x_t * h_x)
        y = project_y(y - rho_t * gamma_y_t * h_y)
        z = ball(z - rho_t * gamma_z_t * h_z, r)
        history.append({"x": x, "y": y, "z": z, "s_x": s_x, "s_y": s_y, "s_z": s_z})
    return history


def la_asfbo(problem, draws, x0, y0, **hyperparameters):
    """LA-ASFBO: ASFBO with STORM buffers; keywords of `asfbo`."""
    return asfbo(problem, draws, x0, y0, storm=True, **hyperparameters)


def fednest(
    problem, draws, x0, y0, *, rounds, T, N, alpha, beta, eta_H=None, outer_steps=1, divide_steps=True,
    code_series=False, project_x=identity, project_y=identity,
):  # fmt: skip
    """FedNest with the full Neumann series; code_series=True: the series of the reference code."""
    x, y = x0, y0
    history = []
    for t in range(rounds):
        alpha_t, beta_t = at(alpha, t), at(beta, t)
        eta_H_t = alpha_t if eta_H is None else at(eta_H, t)
        for m in range(T):  # FedInn
            C = draws.participants(t, fresh=m)
            q = average(draws, {i: problem.g_y(x, y, draws.rows("lower", i, t, m, "anchor")) for i in C})
            y_end = {}
            for i in C:
                tau = draws.steps(t, i)
                beta_i = beta_t / tau if divide_steps else beta_t
                y_i = y
                for k in range(tau):
                    zeta = draws.rows("lower", i, t, m * draws.max_steps + k, "y")
                    y_i = project_y(y_i)
                    y_i = y_i - beta_i * (problem.g_y(x, y_i, zeta) - problem.g_y(x, y, zeta) + q)
                y_end[i] = y_i
            y = project_y(average(draws, y_end))
        C = draws.participants(t, fresh=T)  # FedIHGP
        a = average(draws, {i: problem.f_y(x, y, draws.rows("upper", i, t, 0, "z")) for i in C})
        z = a
        power = dict.fromkeys(C, a)  # of the code: (I − η_H H_i)^j a_0, which never leaves the client's own Hessian
        for j in range(1, N + 1):
            hop = {}
            for i in C:
                start = power[i] if code_series else a
                hop[i] = start - eta_H_t * problem.g_yy(x, y, draws.rows("lower", i, t, j, "z")) @ start
            a, power = average(draws, hop), hop
            z = z + (a / j if code_series else a)
        z = eta_H_t * z
        h = {}  # FedOut
        for i in C:
            xi, zeta = draws.rows("upper", i, t, 0, "x"), draws.rows("lower", i, t, 0, "x")
            h[i] = problem.f_x(x, y, xi) - problem.g_xy(x, y, zeta) @ z
        h = average(draws, h)
        alpha_i = alpha_t / outer_steps if divide_steps else alpha_t
        x_end = {}
        for i in C:
            x_i = x
            for k in range(outer_steps):
                xi = draws.rows("upper", i, t, k, "outer")
                x_i = project_x(x_i)
                x_i = x_i - alpha_i * (problem.f_x(x_i, y, xi) - problem.f_x(x, y, xi) + h)
            x_end[i] = x_i
        x = project_x(average(draws, x_end))
        history.append({"x": x, "y": y})
    return history


def lfednest(
    problem, draws, x0, y0, *, rounds, T, N, alpha, beta, eta_H, outer_steps=1, project_x=identity, project_y=identity,
):  # fmt: skip
    """LFedNest: plain local steps on y, then on x along each client's own hypergradient; steps are not divided."""
    x, y = x0, y0
    history = []
    for t in range(rounds):
        for m in range(T):
            y_end = {}
            for i in draws.participants(t, fresh=m):
                y_i = y
                for k in range(draws.steps(t, i)):
                    y_i = project_y(y_i)
                    y_i = y_i - beta * problem.g_y(x, y_i, draws.rows("lower", i, t, m * draws.max_steps + k, "y"))
                y_end[i] = y_i
            y = project_y(average(draws, y_end))
        x_end = {}
        for i in draws.participants(t, fresh=T):
            x_i = x
            for k in range(outer_steps):
                x_i = project_x(x_i)
                x_i = x_i - alpha * Phi(problem, x_i, y, eta_H, neumann_batches(draws, i, t, k, N))
            x_end[i] = x_i
        x = project_x(average(draws, x_end))
        history.append({"x": x, "y": y})
    return history


# --- bilevel, one lower level per client -----------------------------------------------------------------------------


def neumann_batches(draws, i, t, k, Q, times=1):
    """ξ_f, ξ_g and ξ_1..ξ_Q at local point k of round t."""
    xi_f = draw(draws, "upper", i, t, k, "x", times)
    xi_g = draw(draws, "lower", i, t, k, "x", times)
    return xi_f, xi_g, [draw(draws, "lower", i, t, k, f"neumann{q}", times) for q in range(1, Q + 1)]


def Phi(problem, x, y, tau, batch):
    """The Neumann estimate of the client's own hypergradient, eq. 11: Q products, Q+1 terms."""
    xi_f, xi_g, xi = batch
    a = problem.f_y(x, y, xi_f)
    s = a
    for xi_q in xi:
        a = a - tau * problem.g_yy(x, y, xi_q) @ a
        s = s + a
    return problem.f_x(x, y, xi_f) - tau * problem.g_xy(x, y, xi_g) @ s


def fedbio_local(
    problem, draws, x0, y0, *, rounds, eta_x, eta_y, tau, Q, project_x=identity, project_y=identity,
):  # fmt: skip
    """FedBiO-Local, Algorithm 3. tau: the Neumann step. "y" is stacked over clients."""
    x, y = x0, np.tile(y0, (draws.n, 1))
    history = []
    for t in range(rounds):
        x_end = {}
        for i in draws.participants(t):
            x_i, y_i = x, y[i].copy()
            for k in range(draws.steps(t, i)):
                x_i = project_x(x_i)
                omega = problem.g_y(x_i, y_i, draws.rows("lower", i, t, k, "y"))
                nu = Phi(problem, x_i, y_i, tau, neumann_batches(draws, i, t, k, Q))
                y_i = project_y(y_i - at(eta_y, t) * omega)
                x_i = x_i - at(eta_x, t) * nu
            x_end[i], y[i] = x_i, y_i
        x = project_x(average(draws, x_end))
        history.append({"x": x, "y": y.copy()})
    return history


def fedbioacc_local(
    problem, draws, x0, y0, *, rounds, eta_x, eta_y, delta, u, c_x, c_y, tau, Q, first_batch=1,
    project_x=identity, project_y=identity,
):  # fmt: skip
    """FedBiOAcc-Local, Algorithm 4. "y" and "d_y" are stacked over clients; d_y is 0 before a client's first round."""
    x, y = x0, np.tile(y0, (draws.n, 1))
    d_x, d_y = None, np.zeros_like(y)
    before = set()  # the participants of the last round
    history = []
    for t in range(rounds):
        C = draws.participants(t)
        I = draws.steps(t, C[0])
        x_i, d_x_i = dict.fromkeys(C, x), dict.fromkeys(C, d_x)
        for i in C:
            if t == 0:
                d_x_i[i] = Phi(problem, x, y[i], tau, neumann_batches(draws, i, 0, 0, Q, first_batch))
                d_y[i] = problem.g_y(x, y[i], draw(draws, "lower", i, 0, 0, "y", first_batch))
            elif i not in before:
                d_y[i] = problem.g_y(x, y[i], draws.rows("lower", i, t, 0, "y"))
        for j in range(1, I + 1):
            s = t * I + j
            sync = s % I == 0
            delta_s = delta / (u + s) ** (1 / 3)
            x_old, y_old = dict(x_i), y.copy()
            for i in C:
                y[i] = project_y(y_old[i] - at(eta_y, t) * delta_s * d_y[i])
                x_i[i] = x_old[i] - at(eta_x, t) * delta_s * d_x_i[i]
                if not sync:
                    x_i[i] = project_x(x_i[i])
            if sync:
                x = project_x(average(draws, x_i))
                x_i = dict.fromkeys(C, x)
            for i in C:
                step = (t + 1, 0) if sync else (t, j)
                zeta, xi = draws.rows("lower", i, *step, "y"), neumann_batches(draws, i, *step, Q)
                d_y[i] = problem.g_y(x_i[i], y[i], zeta) + (1 - c_y * delta_s**2) * (
                    d_y[i] - problem.g_y(x_old[i], y_old[i], zeta)
                )
                d_x_i[i] = Phi(problem, x_i[i], y[i], tau, xi) + (1 - c_x * delta_s**2) * (
                    d_x_i[i] - Phi(problem, x_old[i], y_old[i], tau, xi)
                )
            if sync:
                d_x = average(draws, d_x_i)
        before = set(C)
        history.append({"x": x, "d_x": d_x, "y": y.copy(), "d_y": d_y.copy()})
    return history


# --- minimax ---------------------------------------------------------------------------------------------------------


def local_sgda_plus(
    problem, draws, x0, y0, *, rounds, eta_x, eta_y, S, project_x=identity, project_y=identity,
):  # fmt: skip
    """Local SGDA+; the snapshot x_tilde is renewed every S rounds."""
    x, y, x_tilde = x0, y0, x0
    history = []
    for t in range(rounds):
        x_end, y_end = {}, {}
        for i in draws.participants(t):
            x_i, y_i = x, y
            for k in range(draws.steps(t, i)):
                xi = draws.rows("upper", i, t, k, "x")
                x_i = project_x(x_i)
                f_x, f_y = problem.f_x(x_i, y_i, xi), problem.f_y(x_tilde, y_i, xi)
                x_i = x_i - at(eta_x, t) * f_x
                y_i = project_y(y_i + at(eta_y, t) * f_y)
            x_end[i], y_end[i] = x_i, y_i
        x, y = project_x(average(draws, x_end)), project_y(average(draws, y_end))
        if (t + 1) % S == 0:
            x_tilde = x
        history.append({"x": x, "y": y, "x_tilde": x_tilde})
    return history


def fedsgda_plus(
    problem, draws, x0, y0, *, rounds, eta_x, eta_y, gamma_x, gamma_y, S, project_x=identity, project_y=identity,
):  # fmt: skip
    """FedSGDA+, Algorithm 1. eta: local steps (the paper's ĉ, c), gamma: server steps (the paper's η_x, η_y)."""
    x, y, x_tilde = x0, y0, x0
    history = []
    for t in range(rounds):
        x_change, y_change = {}, {}
        for i in draws.participants(t):
            x_i, y_i = x, y
            for q in range(draws.steps(t, i)):
                xi = draws.rows("upper", i, t, q, "x")
                x_i = project_x(x_i)
                f_x, f_y = problem.f_x(x_i, y_i, xi), problem.f_y(x_tilde, y_i, xi)
                x_i = x_i - at(eta_x, t) * f_x
                y_i = project_y(y_i + at(eta_y, t) * f_y)
            x_change[i], y_change[i] = x_i - x, y_i - y
        x = project_x(x + at(gamma_x, t) * average(draws, x_change))
        y = project_y(y + at(gamma_y, t) * average(draws, y_change))
        if (t + 1) % S == 0:
            x_tilde = x
        history.append({"x": x, "y": y, "x_tilde": x_tilde})
    return history


def fedsgda_m(
    problem, draws, x0, y0, *, rounds, eta_x, eta_y, alpha, beta, first_batch=1, project_x=identity,
    project_y=identity,
):  # fmt: skip
    """FedSGDA-M, Algorithm 2 (eta_x = ĉη, eta_y = cη). u, v are the estimates that made the last step, averaged.

    The paper has no constraint: lines 12-13 are projected at the client, lines 9-10 at the server, after the mean.
    """
    x, y = x0, y0
    u = v = None
    previous = {}  # the points where the participants of the last round started their last step
    history = []
    for t in range(rounds):
        x_end, y_end, u_end, v_end, starts = {}, {}, {}, {}, {}
        for i in draws.participants(t):
            x_i, y_i, u_i, v_i = x, y, u, v
            x_old, y_old = previous.get(i, (x, y))
            Q = draws.steps(t, i)
            for k in range(Q):
                if t == 0 and k == 0:
                    B = draw(draws, "upper", i, 0, 0, "x", first_batch)
                    u_i, v_i = problem.f_x(x, y, B), problem.f_y(x, y, B)
                else:
                    B = draws.rows("upper", i, t, k, "x")
                    u_i = problem.f_x(x_i, y_i, B) + (1 - alpha) * (u_i - problem.f_x(x_old, y_old, B))
                    v_i = problem.f_y(x_i, y_i, B) + (1 - beta) * (v_i - problem.f_y(x_old, y_old, B))
                x_old, y_old = x_i, y_i
                x_i, y_i = x_old - at(eta_x, t) * u_i, y_old + at(eta_y, t) * v_i
                if k < Q - 1:
                    x_i, y_i = project_x(x_i), project_y(y_i)
            x_end[i], y_end[i], u_end[i], v_end[i], starts[i] = x_i, y_i, u_i, v_i, (x_old, y_old)
        x, y = project_x(average(draws, x_end)), project_y(average(draws, y_end))
        u, v = average(draws, u_end), average(draws, v_end)
        previous = starts
        history.append({"x": x, "y": y, "u": u, "v": v})
    return history


def codasca(
    problem, draws, x0, y0, *, rounds, eta, gamma=1.0, Gamma_p=np.inf, weight_decay=0.0, x_ref=None,
    project_x=identity, project_y=identity,
):  # fmt: skip
    """CODASCA on f(v, α) = f(x, y): plain dual gradient, no clipping, one stage. "c_x_i" and "c_y_i" are stacked."""
    x, y, x_ref = x0, y0, x0 if x_ref is None else x_ref
    c_x, c_y = np.zeros_like(x), np.zeros_like(y)
    c_x_i, c_y_i = np.zeros((draws.n, len(x))), np.zeros((draws.n, len(y)))
    history = []
    for t in range(rounds):
        x_end, y_end = {}, {}
        c_x_new, c_y_new = c_x, c_y
        for i in draws.participants(t):
            I = draws.steps(t, i)
            x_i, y_i = x, y
            sum_x, sum_y = np.zeros_like(x), np.zeros_like(y)
            for k in range(I):
                xi = draws.rows("upper", i, t, k, "x")
                x_i = project_x(x_i)
                f_x, f_y = problem.f_x(x_i, y_i, xi), problem.f_y(x_i, y_i, xi)
                sum_x, sum_y = sum_x + f_x, sum_y + f_y
                step_x = f_x - c_x_i[i] + c_x + (x_i - x_ref) / Gamma_p + weight_decay * x_i
                x_i = x_i - at(eta, t) * step_x
                y_i = project_y(y_i + at(eta, t) * (f_y - c_y_i[i] + c_y))
            x_end[i], y_end[i] = x_i, y_i
            # c stays the p-weighted mean of all kept c_i: c + (P/n) Σ_{i∈C} (n/P) p_i Δc_i
            c_x_new = c_x_new + draws.p[i] * (sum_x / I - c_x_i[i])
            c_y_new = c_y_new + draws.p[i] * (sum_y / I - c_y_i[i])
            c_x_i[i], c_y_i[i] = sum_x / I, sum_y / I
        c_x, c_y = c_x_new, c_y_new
        x = project_x(x + at(gamma, t) * (average(draws, x_end) - x))
        y = project_y(y + at(gamma, t) * (average(draws, y_end) - y))
        history.append({"x": x, "y": y, "c_x": c_x, "c_y": c_y, "c_x_i": c_x_i.copy(), "c_y_i": c_y_i.copy()})
    return history


def fednest_minimax(
    problem, draws, x0, y0, *, rounds, T, alpha, beta, outer_steps=1, divide_steps=True, anchors=True, project_x=identity,
    project_y=identity,
):  # fmt: skip
    """FedNest for min_x max_y f; anchors=False: LFedNest for it. y sees the batches of a lower level."""
    x, y = x0, y0
    history = []
    for t in range(rounds):
        for m in range(T):  # FedInn
            C = draws.participants(t, fresh=m)
            q = average(draws, {i: problem.f_y(x, y, draws.rows("lower", i, t, m, "anchor")) for i in C})
            y_end = {}
            for i in C:
                tau = draws.steps(t, i)
                y_i = y
                for k in range(tau):
                    zeta = draws.rows("lower", i, t, m * draws.max_steps + k, "y")
                    y_i = project_y(y_i)
                    f_y = problem.f_y(x, y_i, zeta)
                    if anchors:
                        f_y = f_y - problem.f_y(x, y, zeta) + q
                    y_i = y_i + (beta / tau if divide_steps else beta) * f_y
                y_end[i] = y_i
            y = project_y(average(draws, y_end))
        C = draws.participants(t, fresh=T)  # FedOut
        h = average(draws, {i: problem.f_x(x, y, draws.rows("upper", i, t, 0, "x")) for i in C})
        x_end = {}
        for i in C:
            x_i = x
            for k in range(outer_steps):
                xi = draws.rows("upper", i, t, k, "outer")
                x_i = project_x(x_i)
                f_x = problem.f_x(x_i, y, xi)
                if anchors:
                    f_x = f_x - problem.f_x(x, y, xi) + h
                x_i = x_i - (alpha / outer_steps if divide_steps else alpha) * f_x
            x_end[i] = x_i
        x = project_x(average(draws, x_end))
        history.append({"x": x, "y": y})
    return history


# --- client weighting ------------------------------------------------------------------------------------------------


def primal_dual(
    problem, draws, x0, w0, *, rounds, K, eta_x, eta_w, eta_lambda, Gamma, D_lambda=np.inf, lambda0=None, random=False,
):  # fmt: skip
    """PrimalDual, Algorithms 1 and 2; x holds the weights of the n clients, w the model, lam the dual λ.

    With ``random`` G_x is that of a random inner step, as in Theorems 1 and 2, and not that of the last.
    """
    x, w, lam = x0, w0, np.zeros_like(w0) if lambda0 is None else lambda0
    history = []
    for t in range(rounds):
        chosen = draws.inner_step(t, K) if random else K - 1
        for k in range(K):
            A = draws.participants(t, fresh=k)
            s = {i: problem.grad(w, draws.rows("lower", i, t, k, "x")) for i in A}
            hessian_lam = {i: problem.hess(w, draws.rows("lower", i, t, k, "z")) @ lam for i in A}
            scale = draws.n / len(A)
            g_w = problem.grad0(w, draws.rows("server", 0, t, k, "x"))
            g_w = g_w + scale * sum(x[i] * (hessian_lam[i] + Gamma * s[i]) for i in A)
            g_lam = scale * sum(x[i] * s[i] for i in A)
            if k == chosen:  # of the last k this is G_x of line 11: λ and s before the K-th update
                g_x = np.zeros_like(x)
                for i in A:
                    g_x[i] = scale * lam @ s[i]
            w = w - at(eta_w, t) * g_w
            lam = ball(lam + at(eta_lambda, t) * g_lam, D_lambda)
        x = simplex(x - at(eta_x, t) * g_x)
        history.append({"x": x, "w": w, "lambda": lam})
    return history
