"""How few nodes a draw of participants can be on: a secure sum of too few would hide nobody, and is never made."""

from collections import Counter
from collections.abc import Mapping
from itertools import accumulate

import numpy as np

from rookery.aggregation.secure.options import LEAST, SecureSum
from rookery.algorithm.exchange import exchanges, parts_of
from rookery.algorithm.setting import Setting
from rookery.engines.flower.masking import too_little
from rookery.problem.participation import Bernoulli, Full, Participation, Replay
from rookery.problem.validation import warn

RARE = 1e-3
"""Draws that are too small are warned about if they come more often: each costs a round's attempt."""
Hosts = Mapping[int, int]
"""The node of each client."""


def check_reach(setting: Setting, hosts: Hosts, options: SecureSum) -> None:
    """Raises if draws of participants cannot have a secure sum; warns if many of them by chance cannot.

    Raises:
        ValueError: a draw can be on too few nodes, or its weights hide nobody.
    """
    participation = setting.participation
    if isinstance(participation, Bernoulli) and participation.least(len(hosts)) == 1:
        if (chance := chance_of_fewer(participation.probability, hosts)) > RARE:
            warn(
                f"secure: the participants of a draw are on fewer than {LEAST} nodes with probability {chance:.2g}; then "
                "there is no sum, and the round is repeated"
            )
    elif (few := fewest(participation, hosts)) < LEAST:
        raise ValueError(
            f"secure sums must have at least {LEAST} nodes in every draw, got draws on {few}: all participants of "
            f"{type(participation).__name__} can live on as few of the {len(set(hosts.values()))} nodes"
        )
    if isinstance(participation, Full):
        _check_worth(setting, hosts, options)


def fewest(participation: Participation, hosts: Hosts) -> int:
    """The least number of nodes that a draw can be on: its participants may all live on the largest ones."""
    if isinstance(participation, Replay):
        width = participation.ids.shape[-1]
        rows = zip(np.reshape(participation.ids, (-1, width)), np.reshape(participation.mask, (-1, width)), strict=True)
        return min(len({hosts[int(client)] for client in ids[used]}) for ids, used in rows)
    least = participation.least(len(hosts))
    sizes = sorted(Counter(hosts.values()).values(), reverse=True)
    return next(nodes for nodes, clients in enumerate(accumulate(sizes), 1) if clients >= least)


def chance_of_fewer(probability: float, hosts: Hosts) -> float:
    """The probability that a draw is on fewer than ``LEAST`` nodes, where each client takes part by itself."""
    reached = np.ones(1)
    for size in Counter(hosts.values()).values():
        absent = (1 - probability) ** size
        reached = np.convolve(reached, [absent, 1 - absent])
    return float(reached[1:LEAST].sum() / reached[1:].sum())  # somebody always takes part


def _check_worth(setting: Setting, hosts: Hosts, options: SecureSum) -> None:
    """All always take part: what nodes would refuse of the weights of clients in every round is told before the first."""
    told = [weighting for stage in exchanges(setting.algorithm.round()) for _, weighting in parts_of(stage)]
    if not any(isinstance(weighting, str) for weighting in told):
        return
    masses: Counter[int] = Counter()
    for client, weight in enumerate(np.asarray(setting.clients.weights, np.float64)):
        masses[hosts[client]] += weight
    problem = too_little("every upload", masses.values(), options.needed(len(masses)))
    if problem is not None:
        raise ValueError(f"secure: {problem}")
