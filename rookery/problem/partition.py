"""Who holds what: index arrays of the examples of each client.

Every random choice comes from np.random.default_rng of the seed AND the name of the function: with one seed for all of
them, the examples that get a noisy label have nothing to do with those that a client gets. Index arrays are int64 and
ascending; those of different clients have no index in common.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices = NDArray[np.int64]

_TRIES = 1000


def iid(num_examples: int, clients: int, seed: int, per_client: int | None = None) -> list[Indices]:
    """Deal the examples 0..num_examples−1 at random, `per_client` to each client or else all, as evenly as possible."""
    _check(num_examples >= 1, "num_examples", num_examples, "must be positive")
    _check(clients >= 1, "clients", clients, "must be positive")
    _check(clients <= num_examples, "clients", clients, f"more than the {num_examples} examples")
    order = _rng(seed, "iid").permutation(num_examples)
    if per_client is not None:
        _check(per_client >= 1, "per_client", per_client, "must be positive")
        needed = clients * per_client
        _check(needed <= num_examples, "per_client", per_client, f"{needed} examples needed, {num_examples} given")
        order = order[:needed]
    return [np.sort(part) for part in np.array_split(order, clients)]


def shards(
    labels: ArrayLike, clients: int, seed: int, per_client: int = 2, shard_size: int | None = None
) -> list[Indices]:
    """Sort the examples by label, cut them into equal shards and deal `per_client` random shards to each client.

    Without `shard_size` there are clients·per_client shards of ⌊n/(clients·per_client)⌋ examples, with it there are
    ⌊n/shard_size⌋, of which clients·per_client are dealt. What remains at the end (the last label) is left out.
    """
    y = _labels(labels)
    _check(clients >= 1, "clients", clients, "must be positive")
    _check(per_client >= 1, "per_client", per_client, "must be positive")
    needed = clients * per_client
    if shard_size is None:
        _check(
            needed <= y.size, "clients", clients, f"{needed} shards of at least one example, {y.size} examples given"
        )
        count, size = needed, y.size // needed
    else:
        _check(shard_size >= 1, "shard_size", shard_size, "must be positive")
        count, size = y.size // shard_size, shard_size
        _check(needed <= count, "shard_size", shard_size, f"{needed} shards needed, {y.size} examples give {count}")
    table = np.argsort(y, kind="stable")[: count * size].reshape(count, size)
    hands = _rng(seed, "shards").permutation(count)[:needed].reshape(clients, per_client)
    return [np.sort(table[hand], axis=None) for hand in hands]


def dirichlet(labels: ArrayLike, clients: int, seed: int, alpha: float, min_size: int = 1) -> list[Indices]:
    """Cut each class among the clients in proportions q_c ~ Dirichlet(alpha, ..., alpha), drawn anew for each class c.

    Client k gets the examples from ⌊n_c Σ_{j<k} q_cj⌉ to ⌊n_c Σ_{j<=k} q_cj⌉ of class c in random order, so that every
    example is held by someone. A small alpha gives each client few classes, a large one the same mixture to all. All
    is drawn again until each client holds at least `min_size` examples.
    """
    y = _labels(labels)
    _check(clients >= 1, "clients", clients, "must be positive")
    _check(alpha > 0, "alpha", alpha, "must be positive")
    _check(min_size >= 0, "min_size", min_size, "must not be negative")
    _check(clients <= y.size, "clients", clients, f"more than the {y.size} examples")
    needed = clients * min_size
    _check(needed <= y.size, "min_size", min_size, f"{needed} examples needed, {y.size} given")
    rng = _rng(seed, "dirichlet")
    members = [np.flatnonzero(y == c) for c in np.unique(y)]
    for _ in range(_TRIES):
        shares = rng.dirichlet(np.full(clients, alpha), len(members)).cumsum(axis=1)[:, :-1]
        cuts = [np.rint(share * m.size).astype(np.int64) for share, m in zip(shares, members, strict=True)]
        sizes = sum(np.diff(cut, prepend=0, append=m.size) for cut, m in zip(cuts, members, strict=True))
        if np.min(sizes) >= min_size:
            dealt = [np.split(rng.permutation(m), cut) for m, cut in zip(members, cuts, strict=True)]
            return [np.sort(np.concatenate(parts)) for parts in zip(*dealt, strict=True)]
    raise ValueError(f"min_size={min_size}: not reached in {_TRIES} draws with alpha={alpha}, clients={clients}")


def by_class(labels: ArrayLike, groups: Sequence[Sequence[int]], seed: int = 0) -> list[Indices]:
    """Give client k all examples whose label is in groups[k].

    A class in several groups is cut among them at random, in parts whose sizes differ by at most 1. Classes in no group
    are left out.
    """
    y = _labels(labels)
    _check(len(groups) >= 1, "groups", groups, "must not be empty")
    rng = _rng(seed, "by_class")
    parts: list[list[Indices]] = [[] for _ in groups]
    for c in sorted({c for group in groups for c in group}):
        holders = [k for k, group in enumerate(groups) for other in group if other == c]
        _check(len(holders) == len(set(holders)), "groups", groups, f"class {c} occurs twice in one group")
        members = np.flatnonzero(y == c)
        _check(members.size > 0, "groups", groups, f"no example has class {c}")
        if len(holders) > 1:
            members = rng.permutation(members)
        for k, part in zip(holders, np.array_split(members, len(holders)), strict=True):
            parts[k].append(part)
    held = [np.sort(np.concatenate([np.empty(0, np.int64), *part])) for part in parts]
    for k, indices in enumerate(held):
        _check(indices.size > 0, "groups", groups, f"client {k} holds no example")
    return held


def long_tailed(labels: ArrayLike, factor: float, classes: int | None = None, base: int | None = None) -> Indices:
    """Return what remains when class c keeps its first min(n_c, ⌈base·r^c⌉) examples, r = factor^{−1/(C−1)}.

    C = `classes` (default: the largest label plus 1), n_c is the size of class c, `base` the size of the largest class
    unless given; `factor` is thus the ratio of the first class to the last. The power is taken of the rounded r, as in
    the FedNest code, so that a whole number base·r^c may come out a hair above itself: with base 6000, factor 100 and
    C = 10 the last class keeps ⌈60.00000000000002⌉ = 61 examples.
    """
    y = _labels(labels)
    classes = _classes(y, classes)
    _check(factor >= 1, "factor", factor, "must be at least 1")
    counts = np.bincount(y, minlength=classes)
    base = int(counts.max()) if base is None else base
    _check(base >= 1, "base", base, "must be positive")
    ratio = (1 / factor) ** (1 / max(classes - 1, 1))
    kept = [np.flatnonzero(y == c)[: math.ceil(base * ratio**c)] for c in range(classes)]
    return np.sort(np.concatenate(kept))


def noisy_labels(
    labels: ArrayLike, fraction: float, seed: int, classes: int | None = None, different: bool = False
) -> tuple[NDArray[np.integer], NDArray[np.bool_]]:
    """Replace the labels of ⌊fraction·n⌉ random examples by uniformly random ones; return (new labels, mask of these).

    The new label is uniform on 0..C−1, so that a share 1/C of the replaced ones keeps its value, or with `different`
    uniform on the C−1 wrong ones. C = `classes`, by default the largest label plus 1.
    """
    y = _labels(labels)
    classes = _classes(y, classes)
    _check(0 < fraction <= 1, "fraction", fraction, "must lie in (0, 1]")
    _check(classes >= 2 or not different, "classes", classes, "must be at least 2 for a different label")
    rng = _rng(seed, "noisy_labels")
    chosen = rng.permutation(y.size)[: round(fraction * y.size)]
    if different:
        drawn = (y[chosen] + rng.integers(1, classes, chosen.size)) % classes
    else:
        drawn = rng.integers(0, classes, chosen.size)
    mask = np.zeros(y.size, np.bool_)
    mask[chosen] = True
    noisy = y.copy()
    noisy[chosen] = drawn
    return noisy, mask


def split(parts: Sequence[Indices], fraction: float | int, seed: int) -> tuple[list[Indices], list[Indices]]:
    """Split each client's n examples at random: return the lists (rest, held out).

    A float in (0, 1) holds out min(max(⌊fraction·n⌉, 1), n − 1) of them, an integer this very number. The usual reading
    is rest = lower level (training), held out = upper level (validation).
    """
    exact = isinstance(fraction, int | np.integer)
    if exact:
        _check(fraction >= 1, "fraction", fraction, "a number of examples must be positive")
    else:
        _check(0 < fraction < 1, "fraction", fraction, "must lie in (0, 1), or be an integer number of examples")
    rng = _rng(seed, "split")
    rest, held = [], []
    for k, part in enumerate(parts):
        n = len(part)
        _check(n >= 2, f"parts[{k}]", part, "needs two examples or more")
        _check(not exact or fraction < n, "fraction", fraction, f"client {k} has only {n} examples")
        number = int(fraction) if exact else min(max(round(fraction * n), 1), n - 1)
        order = rng.permutation(part)
        held.append(np.sort(order[:number]))
        rest.append(np.sort(order[number:]))
    return rest, held


def _rng(seed: int, purpose: str) -> np.random.Generator:
    _check(seed >= 0, "seed", seed, "must not be negative")
    return np.random.default_rng([*purpose.encode(), seed])


def _check(ok: bool, argument: str, value: object, rule: str) -> None:
    if not ok:
        raise ValueError(f"{argument}={value!r}: {rule}")


def _labels(labels: ArrayLike) -> NDArray[np.integer]:
    y = np.asarray(labels)
    if y.ndim != 1 or y.size == 0 or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"labels: must be a vector of integers, not of shape {y.shape} and dtype {y.dtype}")
    return y


def _classes(y: NDArray[np.integer], classes: int | None) -> int:
    """Return the number of classes and check that the labels lie in 0..classes−1."""
    _check(y.min() >= 0, "labels", int(y.min()), "must not be negative")
    classes = int(y.max()) + 1 if classes is None else classes
    _check(y.max() < classes, "classes", classes, f"label {y.max()} occurs")
    return classes
