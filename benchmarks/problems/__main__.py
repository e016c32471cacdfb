"""The table of problems."""

import sys
import time

import jax
import numpy as np

from benchmarks.problems import Problem, problems


def kind(made: Problem) -> str:
    """The class of a problem."""
    return type(made.problem).__name__ + (" (local)" if getattr(made.problem, "lower_level", "") == "local" else "")


def size(tree: object) -> int:
    """The number of reals."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree))


def main() -> None:
    """Prints a line for each problem, or for those that are named."""
    print(f"{'name':18}{'class':18}{'x':>6}{'y':>6}{'n':>4}{'rounds':>8}{'a round':>9}{'steps':>7}{'batch':>7}", end="")
    print(f"{'Φ(x0)':>12}{'optimum':>12}{'seconds':>10}")
    for name, make in problems().items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        made = make()
        value = float(made.phi(made.x0, made.y0))
        start = time.perf_counter()
        jax.block_until_ready(made.phi(made.x0, made.y0))
        took = time.perf_counter() - start
        best = "" if made.optimum is None else f"{made.optimum:.5g}"
        n, participants, batch = made.clients.n, made.participation or made.clients.n, made.batch_size or "all"
        print(f"{name:18}{kind(made):18}{size(made.x0):6}{size(made.y0):6}{n:4}{made.rounds:8}", end="")
        print(f"{participants:9}{made.local_steps:7}{batch:>7}{value:12.5g}{best:>12}{took:10.4f}", flush=True)


if __name__ == "__main__":
    main()
