"""Networks, as Equinox modules that map a batch to a batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array


class Dense(eqx.Module):
    """batch @ weight + bias."""

    weight: Array
    bias: Array

    def __init__(self, inputs: int, outputs: int, key: Array):
        """Uniform in ±1/√inputs, as PyTorch starts a linear layer."""
        bound = 1 / inputs**0.5
        w_key, b_key = jax.random.split(key)
        self.weight = jax.random.uniform(w_key, (inputs, outputs), minval=-bound, maxval=bound)
        self.bias = jax.random.uniform(b_key, (outputs,), minval=-bound, maxval=bound)

    def __call__(self, batch: Array) -> Array:
        """(examples, inputs) to (examples, outputs)."""
        return batch @ self.weight + self.bias


def cross_entropy(logits: Array, labels: Array) -> Array:
    """The mean over the batch of −log softmax at the label.

    By a product with one-hot labels: its gradient is a dense expression, where that of an indexed one is a scatter.
    """
    hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.sum(hot * logits, -1))


def squared_norm(tree: eqx.Module) -> Array:
    """‖tree‖², over all of its arrays."""
    return sum((jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))
