"""Privacy of clients: each upload is clipped, and the sum gets Gaussian noise.

A client's upload of an exchange has parts. Each is measured from a centre that everybody knows (what was broadcast under
its name, where clients upload an average of what became of it; else 0), and shortened. Weights are fixed: p_i·n/E|C|, not
normalised over who came, so that one client changes the sum by no more than its own weight times its clip.
"""

import math
import os
from collections.abc import Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

PARTS = 16
"""The most parts of an upload for which a clip can adapt itself."""
WITHIN = "within the clip"
"""The part of an upload that says which of the others were not shortened, where the clip adapts itself."""
SPREAD = 20.0
"""The noise of that part: a twentieth of the participants expected, as Andrew et al. have it."""


class AdaptiveClip(eqx.Module):
    """A clip that finds itself: it moves until a share of the uploads is not shortened (Andrew et al., 2021).

    Every exchange, and every part of an upload, has a clip of its own. What it costs in privacy is counted.

    Args:
        start: the clip of the first round.
        quantile: the share of uploads that are to be left as they are.
        rate: how fast it moves: by a factor of exp(rate) a round at most.
    """

    start: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2

    def __check_init__(self) -> None:
        for name, most in (("start", math.inf), ("quantile", 1.0), ("rate", math.inf)):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value < most:
                bound = "positive" if most == math.inf else f"in (0, {most:g})"
                raise ValueError(f"AdaptiveClip: {name} must be {bound}, got {value!r}")


class ClientPrivacy(eqx.Module):
    """Differential privacy of whole clients: with any one of them or without, what comes out is nearly the same.

    Args:
        clip: the most that a client's upload of an exchange may be long; or ``rk.AdaptiveClip()``, which finds it.
        noise: the noise multiplier, the noise's standard deviation in units of what one client can change at most in one
            exchange. None finds the least that lasts for all rounds at ``epsilon``.
        delta: the δ of the guarantee; less than one over the number of clients.
        epsilon: the run stops before it would spend more. None: it is counted only.
        by: whether every "part" of an upload is clipped by itself (parts have different scales), or the "whole".
    """

    clip: float | AdaptiveClip
    noise: float | None = None
    delta: float = eqx.field(static=True, default=1e-5)
    epsilon: float | None = eqx.field(static=True, default=None)
    by: Literal["part", "whole"] = eqx.field(static=True, default="part")

    def __check_init__(self) -> None:
        clip, noise = self.clip, self.noise
        if not isinstance(clip, AdaptiveClip) and not (_is_scalar(clip) and 0 < clip < math.inf):
            raise ValueError(f"privacy: clip must be positive or rk.AdaptiveClip(), got {clip!r}")
        if noise is not None and not (_is_scalar(noise) and 0 < noise < math.inf):
            raise ValueError(f"privacy: noise must be positive: without noise nothing is private, got {noise!r}")
        if not _is_number(self.delta) or not 0 < self.delta < 1:
            raise ValueError(f"privacy: delta must be in (0, 1), got {self.delta!r}")
        if self.epsilon is not None and not (_is_number(self.epsilon) and 0 < self.epsilon < math.inf):
            raise ValueError(f"privacy: epsilon must be positive or None, got {self.epsilon!r}")
        if noise is None and self.epsilon is None:
            raise ValueError("privacy: give noise, or the epsilon that noise is to be found for, got neither")
        if self.by not in ("part", "whole"):
            raise ValueError(f'privacy: by must be "part" or "whole", got {self.by!r}')

    @property
    def adapts(self) -> bool:
        """Whether the clip finds itself."""
        return isinstance(self.clip, AdaptiveClip)

    def first_clips(self, stages: int, dtype: Any) -> Array | None:
        """The clips of each stage and part before round 0; None where they never change."""
        return jnp.full((stages, PARTS), self.clip.start, dtype) if isinstance(self.clip, AdaptiveClip) else None

    def cost_of_exchange(self, expected: float, noise: float) -> float:
        """What an exchange costs in exchanges of a fixed clip: more than 1 where it also tells what was not shortened."""
        if not self.adapts:
            return 1.0
        return 1 + (noise / (2 * expected / SPREAD)) ** 2

    def told(self) -> dict[str, Any]:
        """What a client needs to know of it."""
        clip = None if self.adapts else float(self.clip)  # type: ignore[arg-type]
        return {"clip": clip, "noise": float(self.noise), "by": self.by}  # type: ignore[arg-type]

    @staticmethod
    def of_told(told: Mapping[str, Any]) -> "ClientPrivacy":
        """Privacy as a client needs it."""
        clip = AdaptiveClip() if told["clip"] is None else told["clip"]
        return ClientPrivacy(clip, noise=told["noise"], by=told["by"])

    # --- in a client's hands

    def clipped(self, up: dict[str, Any], centres: dict[str, Any], clips: Array | None) -> dict[str, Any]:
        """A client's upload as it leaves it: ways from the centres, shortened; and maybe which were short enough."""
        return self._shortened(
            {part: jax.tree.map(jnp.subtract, up[part], centres[part]) for part in sorted(up)}, clips
        )

    def clipped_again(self, up: dict[str, Any], clips: Array | None) -> dict[str, Any]:
        """What should be clipped already, in the hands of a server that sees it: a client may lie."""
        ways = {part: up[part] for part in sorted(up) if part != WITHIN}
        short = self._shortened(ways, clips)
        if WITHIN in up:  # what is shortened now does not say what was shortened before
            short[WITHIN] = jnp.clip(up[WITHIN], -0.5, 0.5)
        return short

    def _shortened(self, ways: dict[str, Any], clips: Array | None) -> dict[str, Any]:
        if self.by == "whole":
            lengths = dict.fromkeys(ways, _norm(ways))
        else:
            lengths = {part: _norm(way) for part, way in ways.items()}
        short: dict[str, Any] = {}
        for place, (part, way) in enumerate(ways.items()):
            length = lengths[part]
            most = self.clip_of(place, clips).astype(length.dtype)
            factor = jnp.minimum(1, most / jnp.maximum(length, jnp.finfo(length.dtype).tiny))
            short[part] = jax.tree.map(
                # What is not finite cannot be shortened, and would show in any sum: it counts as nothing.
                lambda leaf, factor=factor, length=length: jnp.where(
                    jnp.isfinite(length), (factor * leaf).astype(leaf.dtype), 0
                ),
                way,
            )
        if clips is not None:
            within = [lengths[part] <= self.clip_of(place, clips) for place, part in enumerate(ways)]
            told = within[:1] if self.by == "whole" else within
            short[WITHIN] = jnp.stack(told).astype(clips.dtype) - 0.5
        return short

    def clip_of(self, place: int, clips: Array | None) -> Array:
        """The clip of the part that is number ``place`` in the order of names."""
        if clips is None:
            return jnp.asarray(self.clip)
        return clips[0 if self.by == "whole" else place]

    # --- on what is received

    def deviation(self, place: int, parts: int, clips: Array | None, weight: Any) -> Array:
        """Of the noise of a part, where one client's weight is at most ``weight``."""
        spread = math.sqrt(parts) if self.by == "part" else 1.0
        found: Array = jnp.asarray(self.noise) * self.clip_of(place, clips) * spread * weight
        return found

    def moved(self, clips: Array, share: Array, parts: int) -> Array:
        """The clips after an exchange in which (about) this share of the uploads was not shortened."""
        assert isinstance(self.clip, AdaptiveClip)
        number = 1 if self.by == "whole" else parts
        factor = jnp.exp(-self.clip.rate * (jnp.clip(share, 0, 1) - self.clip.quantile))
        return clips.at[:number].multiply(factor[:number].astype(clips.dtype))


def secret_normals(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Standard normal numbers that nobody can foretell: from the system's own entropy, not from the key of a run."""
    from scipy.special import ndtri  # a second of everybody's start otherwise

    count = math.prod(shape)
    words = np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)
    found: np.ndarray = ndtri((words.astype(np.float64) + 0.5) / 2.0**53).reshape(shape).astype(dtype)
    return found


def _norm(tree: Any) -> Array:
    return jnp.sqrt(sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), jnp.zeros(())))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _is_scalar(value: Any) -> bool:
    """A number, or an array of one."""
    if eqx.is_array(value) or isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "iuf"
    return _is_number(value)
