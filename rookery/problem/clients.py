"""The federation's data: one flat pytree of examples and a table of who holds which, never n padded copies."""

import copy
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.devices import waiting
from rookery.problem.layout import describe, dotted, same_structure, without_torch


class Split(eqx.Module):
    """One kind of data of all clients (their training data, say).

    ``data`` is a pytree of arrays with a leading axis of examples. Client i holds the examples
    ``index[start[i] : start[i] + size[i]]``, or ``start[i] : start[i] + size[i]`` themselves where there is no index;
    together they hold ``total`` examples.
    """

    data: Any
    index: Array | None
    start: Array
    size: Array
    sizes_equal: bool = eqx.field(static=True)
    max_size: int = eqx.field(static=True)
    total: int = eqx.field(static=True)

    def __init__(self, data: Any, indices: Sequence[Any], name: str = "split"):
        """``indices[i]`` lists the examples of client i; they may overlap."""
        data = jax.tree.map(without_torch, data)
        _check_numbers(data, name)
        data = jax.tree.map(_waiting, data)
        total = _length(data, name)
        lists = [np.asarray(rows) for rows in indices]
        sizes = np.array([rows.size for rows in lists])
        _check_sizes(sizes, name)
        rows = np.concatenate(lists)
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
            raise TypeError(f"{name}: indices must be lists of integers, got {rows.dtype} of shape {rows.shape}")
        if rows.min() < 0 or rows.max() >= total:
            bad = rows[(rows < 0) | (rows >= total)][0]
            raise ValueError(f"{name}: indices must lie in 0..{total - 1} (there are {total} examples), got {bad}")
        _check_finite(data, lists, name)
        self.data = data
        self.index = None if np.array_equal(rows, np.arange(total)) else jnp.asarray(rows, jnp.int32)
        self._set_sizes(sizes, np.cumsum(sizes) - sizes)

    def _set_sizes(self, sizes: np.ndarray, starts: np.ndarray) -> None:
        object.__setattr__(self, "start", jnp.asarray(starts, jnp.int32))
        object.__setattr__(self, "size", jnp.asarray(sizes, jnp.int32))
        object.__setattr__(self, "sizes_equal", bool((sizes == sizes[0]).all()))
        object.__setattr__(self, "max_size", int(sizes.max()))
        object.__setattr__(self, "total", int(sizes.sum()))

    @classmethod
    def of(cls, value: Any, name: str) -> "Split":
        """A split from itself or from a list with one pytree of examples for each client."""
        if isinstance(value, Split):
            return value
        if not isinstance(value, list | tuple) or not value:
            what = "[]" if isinstance(value, list | tuple) else f"a {type(value).__name__}: {describe(value)}"
            raise TypeError(f"{name} must be a rk.Split or a list with one pytree of examples a client, got {what}")
        value = [jax.tree.map(without_torch, tree) for tree in value]
        for client, tree in enumerate(value):
            _check_numbers(tree, f"{name}[{client}]")
        trees = [jax.tree.map(np.asarray, tree) for tree in value]
        for client, tree in enumerate(trees):
            if not same_structure(tree, trees[0]):
                raise ValueError(
                    f"{name}: all clients need data of the same structure; client 0 has {jax.tree.structure(trees[0])}, "
                    f"client {client} has {jax.tree.structure(tree)}"
                )
            for a, b in zip(jax.tree.leaves(trees[0]), jax.tree.leaves(tree), strict=True):
                if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype:
                    raise ValueError(
                        f"{name}: all clients need examples of the same shape and dtype; client 0 has "
                        f"{a.dtype}{list(a.shape[1:])}, client {client} has {b.dtype}{list(b.shape[1:])}"
                    )
        sizes = np.array([_length(tree, f"{name}[{client}]") for client, tree in enumerate(trees)])
        _check_sizes(sizes, name)
        ends = np.cumsum(sizes)
        pooled = jax.tree.map(lambda *parts: np.concatenate(parts), *trees)
        return cls(pooled, np.split(np.arange(ends[-1]), ends[:-1]), name)

    @classmethod
    def shared(cls, data: Any, clients: int, name: str = "split") -> "Split":
        """The same examples for every client, stored once."""
        total = _length(data, name)
        split = cls(data, [np.arange(total)], name)
        split._set_sizes(np.full(clients, total), np.zeros(clients, int))
        return split

    def some(self, chosen: np.ndarray, most: int) -> "Split":
        """The first ``most`` examples of some clients; nothing is copied."""
        part = copy.copy(self)
        part._set_sizes(np.minimum(np.asarray(self.size)[chosen], most), np.asarray(self.start)[chosen])
        return part

    def cut(self, chosen: np.ndarray) -> "Split":
        """Some clients with a copy of what they hold and nothing else; what several of them share is stored once."""
        rows, start, size = self.table(chosen)
        used, index = compact(rows)
        part = copy.copy(self)
        data = jax.tree.map(lambda leaf: _waiting(np.asarray(leaf)[used]), self.data)
        object.__setattr__(part, "data", data)
        object.__setattr__(part, "index", None if index is None else jnp.asarray(index, jnp.int32))
        part._set_sizes(size, start)
        return part

    def table(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, start, size): chosen client k holds the examples ``rows[start[k] : start[k] + size[k]]`` of the data.

        Clients with the very same examples share their part of ``rows``. In NumPy: nothing is compiled.
        """
        places = np.stack([np.asarray(self.start)[chosen], np.asarray(self.size)[chosen]], 1).astype(np.int64)
        kinds, which = np.unique(places, axis=0, return_inverse=True)
        ends = np.cumsum(kinds[:, 1])
        total = int(ends[-1]) if len(ends) else 0
        rows = np.arange(total) + np.repeat(kinds[:, 0] - (ends - kinds[:, 1]), kinds[:, 1])
        rows = rows if self.index is None else np.asarray(self.index)[rows]
        return rows, (ends - kinds[:, 1])[which.reshape(-1)], places[:, 1]

    @property
    def clients(self) -> int:
        """The number of clients."""
        return int(self.start.shape[-1])

    def rows(self, client: Any, position: Array) -> Array:
        """Which rows of ``data`` are the client's examples number ``position``."""
        rows = self.start[client] + position
        return rows if self.index is None else self.index[rows]

    def take(self, client: Any, position: Array) -> Any:
        """The client's examples number ``position``."""
        rows = self.rows(client, position)
        return jax.tree.map(lambda leaf: leaf[rows], self.data)


def _waiting(leaf: Any) -> Any:
    return waiting(leaf if hasattr(leaf, "dtype") else np.asarray(leaf))


def compact(rows: np.ndarray) -> tuple[slice | np.ndarray, np.ndarray | None]:
    """(used, index): the rows that occur, each once, and where each of ``rows`` is among them; None: at its own place."""
    if len(rows) and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
        return slice(int(rows[0]), int(rows[0]) + len(rows)), None
    used, index = np.unique(rows, return_inverse=True)
    return used, index.reshape(-1)


class Clients(eqx.Module):
    """Who takes part and what they hold.

    ``lower`` is what the lower objective sees (training data), ``upper`` what the upper one sees (validation data): a
    ``rk.Split``, or a list with one pytree of examples for each client. Without ``upper`` both see the same data.
    ``weights`` are the p_i (default 1/n), ``server`` a pytree of examples that the server itself holds.

    In a run of several processes each may hold a part: ``rk.Clients(lower, upper, first=500, n=1000)`` are the clients 500,
    501, ... of a thousand (:func:`rookery.own_clients` says which are this process's); ``weights`` are those of all.
    """

    lower: Split
    upper: Split
    weights: Array
    server: Split | None
    here: bool = eqx.field(static=True)
    """Whether the clients' data are in this process; see :meth:`elsewhere`."""
    first: int = eqx.field(static=True)
    """The number of the first client whose data are here; see :meth:`part`."""

    def __init__(
        self,
        lower: Any,
        upper: Any = None,
        weights: Any = None,
        server: Any = None,
        *,
        first: int = 0,
        n: int | None = None,
    ):
        self.lower = Split.of(lower, "lower")
        self.upper = self.lower if upper is None else Split.of(upper, "upper")
        here = self.lower.clients
        if self.upper.clients != here:
            raise ValueError(f"upper must have as many clients as lower ({here}), got {self.upper.clients}")
        n = here if n is None else n
        if not 0 <= first <= first + here <= n:
            raise ValueError(f"first: the {here} clients from number {first} on must be some of n={n}")
        p = np.full(n, 1 / n) if weights is None else np.asarray(weights, np.float64)
        if p.shape != (n,):
            raise ValueError(f"weights must have one entry a client ({n}), got shape {p.shape}")
        if not np.isfinite(p).all() or p.min() < 0 or abs(p.sum() - 1) > 1e-5:
            raise ValueError(f"weights must be non-negative and sum to 1, got smallest {p.min():g}, sum {p.sum():g}")
        self.weights = jnp.asarray(p, jnp.result_type(float))
        self.server = None if server is None else Split(server, [np.arange(_length(server, "server"))], "server")
        self.here = True
        self.first = first

    @classmethod
    def elsewhere(cls, n: int, weights: Any = None, server: Any = None) -> "Clients":
        """``n`` clients whose data are on nodes of their own, as a server without data knows them."""
        clients = cls(Split.shared({"elsewhere": np.zeros(1)}, n), weights=weights, server=server)
        object.__setattr__(clients, "here", False)
        return clients

    @property
    def n(self) -> int:
        """The number of clients."""
        return int(self.weights.shape[-1])

    @property
    def held(self) -> range:
        """The clients whose data are here."""
        return range(self.first, self.first + self.lower.clients)

    def cut(self, chosen: range) -> "Clients":
        """The part that has the data of these clients alone, copied; all of them must be here."""
        if chosen.start < self.held.start or chosen.stop > self.held.stop:
            raise ValueError(
                f"cut: the data of clients {chosen.start}..{chosen.stop - 1} must be here, {self.held} are"
            )
        if chosen == self.held:
            return self
        rows = np.arange(chosen.start, chosen.stop) - self.first
        lower = self.lower.cut(rows)
        part = copy.copy(self)
        object.__setattr__(part, "lower", lower)
        object.__setattr__(part, "upper", lower if self.upper is self.lower else self.upper.cut(rows))
        object.__setattr__(part, "first", chosen.start)
        return part

    def some(self, chosen: np.ndarray, most: int) -> "Clients":
        """Some of the clients that are here as all there are, with at most ``most`` examples each; nothing is copied.

        ``chosen`` counts from the first that is here. Their weights sum to 1.
        """
        part = copy.copy(self)
        lower = self.lower.some(chosen, most)
        weights = np.asarray(self.weights, np.float64)[self.first + chosen]
        object.__setattr__(part, "first", 0)
        object.__setattr__(part, "lower", lower)
        object.__setattr__(part, "upper", lower if self.upper is self.lower else self.upper.some(chosen, most))
        object.__setattr__(part, "weights", jnp.asarray(weights / weights.sum(), self.weights.dtype))
        return part

    def share_server(self) -> "Clients":
        """These clients with the server's data as everybody's upper data (one copy), for ``as_bilevel()``."""
        if self.server is None:
            raise ValueError("server must be given: Clients(..., server=examples), got None")
        return Clients(self.lower, Split.shared(self.server.data, self.n, "server"), self.weights, self.server.data)


def _length(data: Any, name: str) -> int:
    leaves = jax.tree.leaves(data)
    shapes = [np.shape(leaf) for leaf in leaves]
    if not shapes or any(not shape for shape in shapes) or len({shape[0] for shape in shapes}) != 1:
        raise ValueError(f"{name}: every array needs the same leading axis of examples, got shapes {shapes}")
    return int(shapes[0][0])


def _check_sizes(sizes: np.ndarray, name: str) -> None:
    if not sizes.size:
        raise ValueError(f"{name} must have at least one client, got none")
    if (sizes == 0).any():
        raise ValueError(f"{name}: every client needs data, client {int(np.argmin(sizes))} has none")


def _check_numbers(data: Any, name: str) -> None:
    """Labels that are words, and arrays of Python objects, are no numbers to compute with."""
    for path, leaf in jax.tree.leaves_with_path(data):
        kind = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
        if not any(jnp.issubdtype(kind, good) for good in (jnp.number, jnp.bool_, jax.dtypes.prng_key)):
            first = np.ravel(np.asarray(leaf))[:1].tolist()
            where = f"array {dotted(path)!r}" if path else "its array"
            raise TypeError(
                f"{name}: {where} must hold numbers, got {kind} (such as {', '.join(map(repr, first))}); "
                "np.unique(labels, return_inverse=True)[1] makes integers of labels"
            )


def _check_finite(data: Any, lists: list[np.ndarray], name: str) -> None:
    """No client holds a NaN or an infinity: every loss of it would be one."""
    for path, leaf in jax.tree.leaves_with_path(data):
        if isinstance(leaf, jax.core.Tracer) or not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        values = np.asarray(leaf)
        with np.errstate(all="ignore"):
            if np.isfinite(values.sum()):  # one pass, nothing stored
                continue
        finite = np.isfinite(values.reshape(len(values), -1))
        bad = ~finite.all(1)
        for client, rows in enumerate(lists):
            if bad[rows].any():
                example = int(np.argmax(bad[rows]))
                value = values.reshape(len(values), -1)[rows[example]][~finite[rows[example]]][0]
                array = f" in {dotted(path)!r}" if path else ""
                raise ValueError(f"{name}: data must be finite, client {client} has {value}{array} (example {example})")
