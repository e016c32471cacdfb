"""A problem module: what a deployed federation needs to know. The same file is installed at the server and at every site.

Each site tunes nothing itself: together they choose the strength of the penalty on each coefficient of a regression
(x, the logarithms) so that the coefficients fitted to the training data (y) predict the validation data best.
"""

import jax.numpy as jnp
import numpy as np

import rookery as rk

FEATURES = 6
num_clients = 4


def validation_loss(x, y, batch):
    """f_i: the squared error on the site's validation data."""
    return ((batch["features"] @ y - batch["target"]) ** 2).mean()


def training_loss(x, y, batch):
    """g_i: the squared error on the site's training data, and the penalty."""
    return ((batch["features"] @ y - batch["target"]) ** 2).mean() + (jnp.exp(x) * y**2).sum()


problem = rk.Bilevel(upper=validation_loss, lower=training_loss)
x0 = np.full(FEATURES, -2.0, np.float32)
y0 = np.zeros(FEATURES, np.float32)


def load_client(partition: int, num_partitions: int) -> rk.Clients:
    """The data of one site. A real one reads its own files here; nothing of it leaves this machine."""
    rng = np.random.default_rng(partition)
    features = rng.standard_normal((60, FEATURES)).astype(np.float32)
    target = features[:, 0] - features[:, 1] + 0.3 * rng.standard_normal(60).astype(np.float32)
    train = {"features": features[:40], "target": target[:40]}
    validation = {"features": features[40:], "target": target[40:]}
    return rk.Clients([train], [validation])


def evaluate(x, y):
    """What the server can tell of (x, y) without data: how many coefficients are as good as zero."""
    return {"largest": jnp.abs(y).max(), "small": (jnp.abs(y) < 0.05).sum()}
