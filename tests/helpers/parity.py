"""Every algorithm on a tiny problem in float64, on one device, on several, or as one of several processes.

    python -m tests.helpers.parity OUT NAME...                       on 1, 2 and 4 devices, beside the plain simulator
    python -m tests.helpers.parity OUT NAME... -- HOST:PORT 2 1      as process 1 of 2

writes what came out to OUT, an .npz file. Seven clients, of whom four take part, hold unequal numbers of examples: neither
two nor four devices have equal shares.
"""

import os
import sys
from pathlib import Path

COMPILATION = "--xla_cpu_use_fusion_emitters=false"
N = 7


def nothing(x, y):
    return {}


HOW = {"rounds": 10, "every": 10, "progress": False, "evaluate": nothing}


def upper(x, y, batch):
    return (0.5 * ((y - batch["b"]) ** 2).sum(1) + 0.5 * batch["s"] * (x @ x)).mean() - 0.3 * x.sum()


def lower(x, y, batch):
    return (0.5 * batch["s"] * ((y - x - batch["a"]) ** 2).sum(1)).mean()


def objective(x, y, batch):
    own = 0.5 * batch["s"] * (x @ x) + (batch["a"] @ x) * y.sum() - 0.5 * ((y - batch["b"]) ** 2).sum(1)
    return own.mean() - 0.3 * x.sum()


def client_loss(w, batch):
    return (0.5 * batch["s"] * ((w - batch["a"]) ** 2).sum(1)).mean()


def examples(seed, size):
    import numpy as np

    rng = np.random.default_rng(seed)
    a, b = 0.5 * rng.standard_normal((size, 2)), rng.standard_normal((size, 2))
    return {"a": a, "b": b, "s": rng.uniform(0.5, 1.5, size)}


def make_clients(chosen=range(N), weights=True, equal=False):
    """The clients of a range, as one process loads them."""
    import numpy as np

    import rookery as rk

    low = [examples(i, 4 if equal else 3 + i % 3) for i in chosen]
    up = [examples(100 + i, 3 if equal else 2 + i % 2) for i in chosen]
    p = np.arange(1, N + 1) / (N * (N + 1) / 2) if weights else None
    return rk.Clients(low, up, weights=p, server=examples(1000, 3), first=chosen.start, n=N)


def make_case(name, chosen=range(N)):
    """(arguments, options) of ``rk.solve``."""
    import numpy as np

    import rookery as rk
    from rookery.solving.prepare import prepare, single

    box = rk.Box(-1.0, 1.0)
    algorithm = rk.registry[name]()
    kind = algorithm.solves[0]
    problem = {
        "bilevel": rk.Bilevel(upper, lower, box, box),
        "bilevel-local": rk.Bilevel(upper, lower, box, box, lower_level="local"),
        "minimax": rk.Minimax(objective, box, box),
        "weighting": rk.ClientWeighting(client_loss, model_set=box),
    }[kind]
    x0 = np.full(N, 1 / N) if kind == "weighting" else np.array([0.6, -0.4])
    task = problem, algorithm, make_clients(chosen, kind != "weighting"), x0, np.array([0.8, 0.3])
    how = {"key": 3, "participation": 4, "batch_size": 2}
    if len(chosen) < N:
        how["engine"] = rk.Simulator(devices="all")
    for steps in (rk.Steps(1, 3), 2, 1):
        try:
            prepare(single(*task, local_steps=steps, **{**how, "engine": None} if len(chosen) == N else how))
        except ValueError:
            continue
        return task, {**how, "local_steps": steps}
    raise AssertionError(name)


def outcome(solution):
    """All that must be the same, by name: arrays, and the counters of the last row."""
    import jax
    import numpy as np

    state = solution.state
    tree = {"x": solution.x, "y": solution.y, "server": state.server, "keep": state.keep, "last": state.last}
    found = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            from jax.experimental.multihost_utils import process_allgather

            leaf = process_allgather(leaf, tiled=True)
        by_client = name.startswith(("keep", "last")) or (name == "y" and np.ndim(leaf) > 1)
        found[name] = np.asarray(leaf)[:N] if by_client else np.asarray(leaf)
    for name, value in solution.history.last.items():
        if name != "seconds":
            found[f"history.{name}"] = np.asarray(value)
    return found


def main(out, names, group):
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    import rookery as rk

    found = {}
    if group:
        rk.join(group[0], int(group[1]), int(group[2]))
    for name in names:
        if group:
            task, how = make_case(name, rk.own_clients(N))
            sides = {"processes": rk.solve(*task, **how, **HOW)}
        else:
            task, how = make_case(name)
            engines = {"plain": None, **{str(d): rk.Simulator(devices=d) for d in (1, 2, 4)}}
            sides = {side: rk.solve(*task, **how, **HOW, engine=engine) for side, engine in engines.items()}
        for side, solution in sides.items():
            found |= {f"{name}/{side}/{part}": value for part, value in outcome(solution).items()}
        jax.clear_caches()
    np.savez(out, **found)
    if group:
        rk.leave()


if __name__ == "__main__":
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    forced = "" if sys.argv[cut + 1 :] else "--xla_force_host_platform_device_count=4 "
    os.environ["XLA_FLAGS"] = forced + COMPILATION
    main(Path(sys.argv[1]), sys.argv[2:cut], sys.argv[cut + 1 :])
