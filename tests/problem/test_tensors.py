"""PyTorch's tensors in place of arrays: data, x0 and y0. (A stand-in: PyTorch is large, and only these three are used.)"""

import jax.numpy as jnp
import numpy as np

import rookery as rk


class Tensor:
    """What is used of a tensor; like one that needs gradients, it gives its numbers only when detached."""

    def __init__(self, values, detached=False):
        self.values, self.detached = np.asarray(values, np.float32), detached

    def detach(self):
        return Tensor(self.values, detached=True)

    def cpu(self):
        return self

    @property
    def dtype(self):
        return "torch.float32"

    def __array__(self, dtype=None, copy=None):
        if not self.detached:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.values


def test_tensors_are_arrays():
    def objective(x, y, batch):
        return jnp.mean((x - batch) ** 2) + jnp.sum(x * y) - jnp.sum(y**2)

    data = [[[1.0], [2.0]], [[4.0]]]
    problem, algorithm = rk.Minimax(objective), rk.LocalSGDA(eta_x=0.1, eta_y=0.1)
    found = [
        rk.solve(problem, algorithm, rk.Clients([kind(each) for each in data]), kind([0.5]), kind([0.0]), rounds=3)
        for kind in (Tensor, lambda values: np.asarray(values, np.float32))
    ]
    assert np.array_equal(found[0].x, found[1].x)
    assert not np.array_equal(found[0].x, [0.5])
