"""Partitions of examples among clients."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from rookery.problem import partition

LABELS = np.random.default_rng(0).integers(0, 10, 1000)
COUNTS = np.bincount(LABELS)
MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TAIL = [5923, 3597, 2157, 1293, 775, 465, 279, 167, 101, 61]


def disjoint(parts) -> np.ndarray:
    """All indices together; fails if one occurs twice or a part is not what the module promises."""
    for part in parts:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    return np.sort(together)


def equal(a, b) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "f",
    [
        lambda seed: partition.iid(1000, 7, seed),
        lambda seed: partition.shards(LABELS, 7, seed),
        lambda seed: partition.dirichlet(LABELS, 7, seed, 0.5),
        lambda seed: partition.by_class(LABELS, [[0, 1], [1, 2]], seed),
        lambda seed: partition.noisy_labels(LABELS, 0.5, seed),
        lambda seed: partition.split([np.arange(100), np.arange(100, 150)], 0.5, seed)[0],
    ],
    ids=["iid", "shards", "dirichlet", "by_class", "noisy_labels", "split"],
)
def test_seed_decides(f):
    assert equal(f(3), f(3))
    assert not equal(f(3), f(4))
    with pytest.raises(ValueError, match="seed=-1"):
        f(-1)


def test_one_seed_does_not_couple_functions():
    """With one and the same permutation the noise would fill the first clients and spare the last."""
    _, mask = partition.noisy_labels(LABELS, 0.5, seed=0)
    shares = [mask[part].mean() for part in partition.iid(len(LABELS), 5, seed=0)]
    assert 0.3 < min(shares) <= max(shares) < 0.7


# iid


@pytest.mark.parametrize(("n", "clients"), [(10, 1), (10, 3), (10, 10), (1000, 7)])
def test_iid_covers_evenly(n, clients):
    parts = partition.iid(n, clients, seed=1)
    assert np.array_equal(disjoint(parts), np.arange(n))
    assert [len(p) for p in parts] == [len(p) for p in np.array_split(np.arange(n), clients)]


def test_iid_per_client():
    parts = partition.iid(1000, 7, seed=1, per_client=100)
    assert [len(p) for p in parts] == [100] * 7
    assert disjoint(parts).max() > 900  # not simply the first 700


def test_iid_is_random():
    parts = partition.iid(10_000, 4, seed=2)
    assert all(abs(p.mean() - 5000) < 300 for p in parts)  # standard deviation 50


# shards


@pytest.mark.parametrize("per_client", [1, 2, 5])
def test_shards_have_few_labels(per_client):
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 100))  # 100 of each
    parts = partition.shards(labels, 20, seed=0, per_client=per_client)
    assert np.array_equal(disjoint(parts), np.arange(1000))
    assert {len(p) for p in parts} == {50}
    assert max(len(np.unique(labels[p])) for p in parts) == per_client  # every shard lies within one class


def test_shards_are_consecutive_in_the_stable_order():
    order = np.argsort(LABELS, kind="stable")
    rank = np.argsort(order)
    for part in partition.shards(LABELS, 10, seed=0, per_client=2):
        ranks = np.sort(rank[part]).reshape(2, 50)
        assert (ranks[:, 0] % 50 == 0).all()
        assert (np.diff(ranks) == 1).all()


def test_shards_leave_the_rest_out():
    parts = partition.shards(LABELS, 150, seed=0)  # 300 shards of 3
    assert {len(p) for p in parts} == {6}
    assert np.array_equal(disjoint(parts), np.sort(np.argsort(LABELS, kind="stable")[:900]))


def test_shard_size_deals_from_all_labels():
    parts = partition.shards(LABELS, 10, seed=0, per_client=2, shard_size=10)  # 20 of 100 shards
    assert {len(p) for p in parts} == {20}
    assert len(np.unique(LABELS[disjoint(parts)])) >= 8  # the first 20 shards hold 3 labels


# dirichlet


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("clients", [1, 2, 9])
def test_dirichlet_covers(alpha, clients):
    parts = partition.dirichlet(LABELS, clients, seed=0, alpha=alpha)
    assert len(parts) == clients
    assert np.array_equal(disjoint(parts), np.arange(1000))


def test_dirichlet_alpha_is_the_heterogeneity():
    def spread(alpha: float) -> float:
        parts = partition.dirichlet(LABELS, 5, seed=0, alpha=alpha)
        shares = np.array([np.bincount(LABELS[p], minlength=10) for p in parts]) / COUNTS
        return float(shares.std(axis=0).mean())

    for alpha in (0.1, 1.0, 1000.0):
        # a share has mean 1/5 and variance (1/5)(4/5)/(5 alpha + 1)
        assert spread(alpha) == pytest.approx((0.16 / (5 * alpha + 1)) ** 0.5, rel=0.5, abs=0.01)


def test_dirichlet_redraws_until_min_size():
    few = [min(map(len, partition.dirichlet(LABELS, 10, seed, alpha=0.3))) for seed in range(5)]
    many = [min(map(len, partition.dirichlet(LABELS, 10, seed, alpha=0.3, min_size=40))) for seed in range(5)]
    assert min(few) < 40 <= min(many)


def test_dirichlet_gives_up():
    with pytest.raises(ValueError, match=r"min_size=100: not reached .* alpha=0.1, clients=10"):
        partition.dirichlet(LABELS, 10, seed=0, alpha=0.1, min_size=100)


# by_class


def test_by_class_of_separate_groups():
    groups = [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9]]
    parts = partition.by_class(LABELS, groups)
    assert np.array_equal(disjoint(parts), np.arange(1000))
    for part, group in zip(parts, groups, strict=True):
        assert set(LABELS[part]) == set(group)
    assert equal(parts, partition.by_class(LABELS, groups, seed=5))  # nothing to draw


def test_by_class_splits_shared_classes():
    parts = partition.by_class(LABELS, [[0, 1], [1, 2], [1]], seed=0)
    assert np.array_equal(disjoint(parts), np.flatnonzero(LABELS <= 2))
    ones = [int((LABELS[p] == 1).sum()) for p in parts]
    assert max(ones) - min(ones) <= 1
    assert [int((LABELS[p] == c).sum()) for p, c in ((parts[0], 0), (parts[1], 2))] == [COUNTS[0], COUNTS[2]]


# long_tailed


def test_long_tailed_keeps_the_first():
    labels = np.tile([2, 0, 1], 100)
    kept = partition.long_tailed(labels, 24.0)
    assert kept.dtype == np.int64
    expected = [np.flatnonzero(labels == c)[:n] for c, n in enumerate([100, 21, 5])]
    assert np.array_equal(kept, np.sort(np.concatenate(expected)))


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"factor": 1.0}, [8, 8]),
        ({"factor": 4.0}, [8, 2]),
        ({"factor": 3.0}, [8, 3]),  # ⌈8/3⌉
        ({"factor": 4.0, "base": 4}, [4, 1]),
        ({"factor": 2.0, "base": 100}, [8, 8]),
        ({"factor": 4.0, "classes": 3}, [8, 4]),
    ],
)
def test_long_tailed_counts(options, counts):
    labels = np.repeat([0, 1], 8)
    assert np.bincount(labels[partition.long_tailed(labels, **options)]).tolist() == counts


def test_long_tailed_of_one_class():
    assert len(partition.long_tailed(np.zeros(5, int), 10.0)) == 5


def test_long_tailed_mnist_by_its_counts():
    labels = np.repeat(np.arange(10), MNIST_TRAIN)
    assert np.bincount(labels[partition.long_tailed(labels, 100, base=6000)]).tolist() == MNIST_TAIL


def test_long_tailed_mnist():
    data = Path(os.environ.get("ROOKERY_DATA") or Path(__file__).parents[3] / "shared" / "data")
    file = data / "mnist" / "train-labels-idx1-ubyte.gz"
    if not file.exists():
        pytest.skip(f"no MNIST labels at {file}")
    labels = np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=8)
    kept = partition.long_tailed(labels, factor=100, base=6000)
    assert np.bincount(labels[kept]).tolist() == MNIST_TAIL
    assert len(kept) == 14818
    # the splits made of it: 148 per client, 200 shards of 74
    assert {len(p) for p in partition.iid(len(kept), 100, seed=0, per_client=148)} == {148}
    assert {len(p) for p in partition.shards(labels[kept], 100, seed=0)} == {148}


# noisy_labels


@pytest.mark.parametrize("fraction", [0.1, 0.7, 0.9004])
@pytest.mark.parametrize("different", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_noisy_labels(fraction, different, dtype):
    labels = LABELS.astype(dtype)
    before = labels.copy()
    noisy, mask = partition.noisy_labels(labels, fraction, seed=0, different=different)
    assert np.array_equal(labels, before)
    assert noisy.dtype == dtype
    assert mask.dtype == np.bool_
    assert mask.sum() == round(fraction * 1000)
    assert np.array_equal(noisy[~mask], labels[~mask])
    assert set(noisy[mask]) == set(range(10))
    unchanged = (noisy == labels)[mask].mean()
    assert unchanged == 0 if different else 0.02 < unchanged < 0.2  # 1/10 expected


@pytest.mark.parametrize("different", [False, True])
def test_noisy_labels_are_uniform(different):
    labels = np.full(50_000, 3)
    noisy, mask = partition.noisy_labels(labels, 0.8, seed=1, classes=5, different=different)
    shares = np.bincount(noisy[mask], minlength=5) / mask.sum()
    expected = [0.25, 0.25, 0.25, 0, 0.25] if different else [0.2] * 5
    np.testing.assert_allclose(shares, expected, atol=0.01)


# split


@pytest.mark.parametrize(
    ("fraction", "held"),
    [
        (0.2, [20, 1, 1]),
        (0.5, [50, 2, 1]),
        (0.999, [99, 4, 1]),
        (0.001, [1, 1, 1]),
        (1, [1, 1, 1]),
        (np.int64(1), [1] * 3),
    ],
)
def test_split_sizes(fraction, held):
    parts = [np.arange(100), np.array([200, 300, 400, 500, 600]), np.array([7000, 8000])]
    rest, out = partition.split(parts, fraction, seed=0)
    assert [len(p) for p in out] == held
    disjoint([*rest, *out])
    for part, a, b in zip(parts, rest, out, strict=True):
        assert np.array_equal(np.sort(np.concatenate([a, b])), part)


def test_split_by_number_is_random():
    rest, held = partition.split([np.arange(600)] * 2, 150, seed=0)
    assert [len(p) for p in rest] == [450, 450]
    assert not np.array_equal(*held)
    assert abs(held[0].mean() - 300) < 60  # standard deviation 12


# Errors


@pytest.mark.parametrize(
    ("f", "arguments", "message"),
    [
        ("iid", (-5, 2, 0), "num_examples=-5"),
        ("iid", (5, 0, 0), "clients=0"),
        ("iid", (5, 6, 0), "clients=6: more than the 5"),
        ("iid", (5, 2, 0, 0), "per_client=0"),
        ("iid", (5, 2, 0, 3), "per_client=3: 6 examples needed, 5 given"),
        ("shards", (LABELS, -1, 0), "clients=-1"),
        ("shards", (LABELS, 501, 0), "clients=501: 1002 shards"),
        ("shards", (LABELS, 10, 0, 0), "per_client=0"),
        ("shards", (LABELS, 10, 0, 2, -1), "shard_size=-1"),
        ("shards", (LABELS, 10, 0, 2, 51), "shard_size=51: 20 shards needed, 1000 examples give 19"),
        ("shards", (LABELS.reshape(10, 100), 10, 0), r"labels: .*\(10, 100\)"),
        ("dirichlet", (LABELS, 0, 0, 1.0), "clients=0"),
        ("dirichlet", (LABELS, 1001, 0, 1.0), "clients=1001"),
        ("dirichlet", (LABELS, 10, 0, 0.0), "alpha=0.0"),
        ("dirichlet", (LABELS, 10, 0, float("nan")), "alpha=nan"),
        ("dirichlet", (LABELS, 10, 0, 1.0, -1), "min_size=-1"),
        ("dirichlet", (LABELS, 10, 0, 1.0, 101), "min_size=101: 1010 examples needed, 1000 given"),
        ("dirichlet", (LABELS * 0.5, 10, 0, 1.0), "labels: .*float64"),
        ("by_class", (LABELS, []), r"groups=\[\]"),
        ("by_class", (LABELS, [[0], [11]]), r"groups=\[\[0\], \[11\]\]: no example has class 11"),
        ("by_class", (LABELS, [[0, 0]]), r"groups=\[\[0, 0\]\]: class 0 occurs twice"),
        ("by_class", (LABELS, [[0], []]), r"groups=\[\[0\], \[\]\]: client 1 holds no example"),
        ("by_class", ([4], [[4], [4]]), "client 1 holds no example"),
        ("long_tailed", (LABELS, 0.5), "factor=0.5"),
        ("long_tailed", (LABELS, 100, 5), "classes=5: label 9 occurs"),
        ("long_tailed", (LABELS, 100, None, 0), "base=0"),
        ("long_tailed", (LABELS - 1, 100), "labels=-1"),
        ("long_tailed", ([], 100), r"labels: .*\(0,\)"),
        ("noisy_labels", (LABELS, 0.0, 0), "fraction=0.0"),
        ("noisy_labels", (LABELS, 1.5, 0), "fraction=1.5"),
        ("noisy_labels", (LABELS, 0.5, 0, 9), "classes=9: label 9 occurs"),
        ("noisy_labels", ([0, 0], 0.5, 0, None, True), "classes=1"),
        ("split", ([np.arange(5)], 0.0, 0), "fraction=0.0"),
        ("split", ([np.arange(5)], 1.5, 0), "fraction=1.5"),
        ("split", ([np.arange(5)], 0, 0), "fraction=0: a number"),
        ("split", ([np.arange(9), np.arange(5)], 5, 0), "fraction=5: client 1 has only 5"),
        ("split", ([np.arange(5), np.arange(1)], 0.5, 0), r"parts\[1\]=array\(\[0\]\)"),
    ],
)
def test_errors_name_argument_and_value(f, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(partition, f)(*arguments)
