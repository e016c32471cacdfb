"""Whether a robust rule, an attack and privacy fit the run that they are wanted for."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.aggregation.attacks import ALittle, Attack, LabelFlip
from rookery.aggregation.privacy import PARTS, ClientPrivacy
from rookery.aggregation.robust import Rule
from rookery.algorithm.cost import Cost
from rookery.algorithm.exchange import Algorithm, exchanges, parts_of, stacked_parts
from rookery.algorithms.registry import name_of
from rookery.problem.clients import Clients
from rookery.problem.layout import describe, same_structure
from rookery.problem.participation import Bernoulli, Participation
from rookery.problem.problems import ClientWeighting, Minimax, Problem
from rookery.problem.validation import warn
from rookery.typing import Tree


def check_kinds(aggregate: Any, attack: Any, privacy: Any) -> None:
    """Each is the kind of thing that it should be, and they go together."""
    if aggregate is not None and not isinstance(aggregate, Rule):
        raise TypeError(f"aggregate must be a rule such as rk.TrimmedMean(0.2) or rk.Median(), got {aggregate!r}")
    if attack is not None and not isinstance(attack, Attack):
        raise TypeError(f"attack must be one of rk.attacks, such as rk.attacks.SignFlip(2), got {attack!r}")
    if privacy is not None and not isinstance(privacy, ClientPrivacy):
        raise TypeError(f"privacy must be rk.ClientPrivacy(clip=..., noise=...), got {privacy!r}")
    if aggregate is not None and privacy is not None:
        raise ValueError(
            f"privacy goes with the weighted mean alone: how much one client can change {type(aggregate).__name__} "
            "is not bounded by its clip; leave out aggregate or privacy"
        )


def check_rule(rule: Rule, algorithm: Algorithm, clients: Clients, participation: Participation) -> None:
    """There are enough participants; warns of weights too large or not kept, and of parts that are not protected."""
    _check_numbers(rule, clients, participation)
    name, kind = name_of(type(algorithm)), type(rule).__name__
    weightings = [told for each in exchanges(algorithm.round()) for told in parts_of(each)]
    unequal = not bool(jnp.allclose(clients.weights, clients.weights[0]))
    if not rule.weighted and (unequal or any(callable(told) for _, told in weightings)):
        warn(f"aggregate: {kind} takes one upload as it is and does not know the weights of clients")
    stacked = stacked_parts(algorithm.round())
    if stacked:
        warn(f"aggregate: {name} asks for {', '.join(stacked)} of every participant, which {kind} does not protect")


def _check_numbers(rule: Rule, clients: Clients, participation: Participation) -> None:
    least, kind, varies = participation.least(clients.n), type(rule).__name__, ""
    if isinstance(participation, Bernoulli) and participation.probability < 1:
        varies = f" under rk.Bernoulli({participation.probability:g}); rk.Uniform(k) fixes their number"
    try:
        rule.check(least)
    except ValueError as error:
        raise ValueError(f"{error}{varies}") from None
    bears, most = rule.bears(), _largest_share(clients, least)
    if not rule.protects(least):
        warn(f"aggregate: of fewer than 3 participants {kind} protects nobody, and there may be only {least}{varies}")
    elif bears is not None and most > bears + 1e-6:
        warn(
            f"aggregate: one client may have {most:.0%} of the weight, and {kind} bears {bears:.0%}: if that one lies, "
            "nothing is protected"
        )


def _largest_share(clients: Clients, least: int) -> float:
    """The most of the weight that one client may have: the heaviest among as few of the lightest as there may be."""
    weights = np.sort(np.asarray(clients.weights, float))
    return float(weights[-1] / (weights[-1] + weights[:-1][: least - 1].sum()))


def check_attack(attack: Attack, problem: Problem, clients: Clients, slots: int, rounds: int | None) -> None:
    """There are such clients, and what flips labels takes their examples and gives such; warns of an attack that is none.

    ``slots`` is how many participants there may be, ``rounds`` how many rounds in all, if that is known.
    """
    attack.check(clients.n)
    if rounds is not None and attack.start >= rounds:
        warn(f"attack: it starts in round {attack.start}, and there are rounds 0..{rounds - 1} only")
    if isinstance(attack, ALittle) and attack.deviations is None:
        liars = attack.clients if isinstance(attack.clients, int) else len(attack.clients)
        if attack.hidden(slots, round(liars * slots / clients.n)) <= 0:
            warn(
                f"attack: so few of {slots} participants lie that the paper's ALittle does not move the mean at all: give "
                "deviations, such as 1.5"
            )
    if not isinstance(attack, LabelFlip) or not clients.here:
        return
    seen = {"lower": clients.lower, "upper": clients.upper}
    if isinstance(problem, Minimax | ClientWeighting):
        del seen["lower" if isinstance(problem, Minimax) else "upper"]
    for name, split in seen.items():
        batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape[1:]), leaf.dtype), split.data)
        try:
            made = jax.eval_shape(attack.flip, batch)
        except Exception as error:
            raise ValueError(
                f"attack: flip cannot take a batch of the {name} data, {describe(batch)}: {type(error).__name__}: {error}"
            ) from error
        shapes = [[leaf.shape for leaf in jax.tree.leaves(tree)] for tree in (made, batch)]
        if not same_structure(made, batch) or shapes[0] != shapes[1]:
            raise ValueError(
                f"attack: flip must return a batch like the one it takes, {describe(batch)} of the {name} data, "
                f"got {describe(made)}"
            )


def check_private(
    privacy: ClientPrivacy, algorithm: Algorithm, clients: Clients, costs: Sequence[Cost] | None, server: Tree
) -> None:
    """What leaves clients can be clipped and has a bounded weight; warns about what is not covered.

    ``server`` is the server's state at the start.
    """
    if privacy.delta >= 1 / clients.n:
        raise ValueError(
            f"privacy: delta must be less than one over the number of clients ({1 / clients.n:.2g}), else the guarantee "
            f"allows to publish one of them, got {privacy.delta:g}"
        )
    for stage in exchanges(algorithm.round()):
        for part, weighting in parts_of(stage):
            if callable(weighting):
                _check_bounded(weighting, server, clients.n, part or "an upload")
    for cost in costs or ():
        whole = [part for part, kind in cost.upload.items() if not kind.startswith("float")]
        if whole:
            raise ValueError(
                f"privacy: {name_of(type(algorithm))} uploads {', '.join(whole)}, which are no numbers to clip"
            )
        if privacy.adapts and len(cost.upload) > PARTS:
            raise ValueError(
                f"privacy: rk.AdaptiveClip() takes uploads of at most {PARTS} parts, got {len(cost.upload)}"
            )
    if algorithm.solves == ("bilevel-local",):
        warn("privacy: x is protected; y is each client's own, made of its data without noise, and must stay with it")
    if not bool(jnp.allclose(clients.weights, clients.weights[0])):
        warn(
            "privacy: the weights of clients are taken for known; where they are sizes of data, these are not protected"
        )


def check_keys(keys: Sequence[Array], makes_noise: bool) -> None:
    """Lanes have noise of their own; warns about keys that can be guessed, if the engine ``makes_noise`` from them."""
    words = [tuple(jax.random.key_data(key).tolist()) for key in keys]
    if len(set(words)) < len(words):
        raise ValueError(
            "privacy: keys must differ between lanes, got equal ones: their noise is the same, so that the difference of "
            "two lanes has none"
        )
    for high, low in words:
        if makes_noise and high == 0:
            warn(
                f"privacy: the noise of a simulation is made from its key, and key = {low} is easily guessed: before you "
                "publish what comes out, give a secret one, such as key=secrets.randbits(62)"
            )
            break


def _check_bounded(weighting: Callable[..., Array], server: Tree, n: int, part: str) -> None:
    """A client's weight is finite and its own, whoever else takes part: else it changes the weights of all others too."""
    every = weighting(server, jnp.arange(n))
    some = weighting(server, jnp.arange(0, n, 2))
    if not bool(jnp.isfinite(every).all()) or not bool(jnp.allclose(every[::2], some)):
        raise ValueError(
            f"privacy: the weighting of {part} must give every client a finite weight that does not depend on who else "
            "takes part: else what one client can change is not bounded, and no noise is enough"
        )
