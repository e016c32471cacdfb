"""All algorithms of the package by name, and which of them fit a problem."""

from collections.abc import Mapping

from rookery.algorithm.exchange import Algorithm
from rookery.algorithms.afl import AFL
from rookery.algorithms.aggitd import FBOITD, FBOAggITD, FBOAggITDSVRG
from rookery.algorithms.codasca import CODASCA, CODAPlus
from rookery.algorithms.commfedbio import CommFedBiO
from rookery.algorithms.exact_gd import ExactGD
from rookery.algorithms.fedavg import FedAvg
from rookery.algorithms.fedbio import FedBiO, FedBiOAcc
from rookery.algorithms.fedbio_local import DistBiO, DistBiOAcc, FedBiOAccLocal, FedBiOLocal
from rookery.algorithms.fedmbo import FedMBO
from rookery.algorithms.fednest import FedNest, FedNestCode, FedNestRandom, FedNestSGD, LFedNest, LFedNestSVRG
from rookery.algorithms.fednest_cw import FedNestCW
from rookery.algorithms.fednest_minimax import FedNestMinimax, LFedNestMinimax
from rookery.algorithms.fedsgda import FedSGDAM, FedSGDAPlus
from rookery.algorithms.fixed_weights import AverageWeights, FixedWeights, ValidationOnly
from rookery.algorithms.local_sgda import LocalSGDA, LocalSGDAPlus, MomentumLocalSGDA
from rookery.algorithms.localbs import AdaFBiO, LocalBSGM, LocalBSGVR
from rookery.algorithms.mefbo import MeFBO
from rookery.algorithms.primal_dual import PrimalDual, PrimalDualRandom
from rookery.algorithms.rfho import RfhoCW, RfhoForwardCW
from rookery.algorithms.sagda import FSGDA, SAGDA
from rookery.algorithms.simfbo import ASFBO, LAASFBO, ShroFBO, SimFBO
from rookery.algorithms.sustain import SustainCW, SustainPlainCW, SustainRandomCW
from rookery.names import unknown
from rookery.problem.problems import Bilevel, Problem

ALGORITHMS: tuple[type[Algorithm], ...] = (
    MeFBO,
    FedBiO,
    FedBiOAcc,
    SimFBO,
    ShroFBO,
    ASFBO,
    LAASFBO,
    FedNest,
    FedNestRandom,
    FedNestCode,
    FedNestSGD,
    LFedNest,
    LFedNestSVRG,
    FedMBO,
    FBOAggITD,
    FBOAggITDSVRG,
    FBOITD,
    CommFedBiO,
    LocalBSGVR,
    LocalBSGM,
    AdaFBiO,
    FedAvg,
    FedBiOLocal,
    FedBiOAccLocal,
    DistBiO,
    DistBiOAcc,
    FedSGDAPlus,
    FedSGDAM,
    LocalSGDA,
    LocalSGDAPlus,
    MomentumLocalSGDA,
    FSGDA,
    SAGDA,
    CODAPlus,
    CODASCA,
    FedNestMinimax,
    LFedNestMinimax,
    PrimalDual,
    PrimalDualRandom,
    ExactGD,
    FedNestCW,
    SustainCW,
    SustainPlainCW,
    SustainRandomCW,
    RfhoCW,
    RfhoForwardCW,
    AFL,
    ValidationOnly,
    AverageWeights,
    FixedWeights,
)
registry: dict[str, type[Algorithm]] = {kind.name: kind for kind in ALGORITHMS}
"""All algorithms of the package by their papers' names."""


def by_name(name: str, own: Mapping[str, type[Algorithm]] | None = None) -> type[Algorithm]:
    """The algorithm of this name, the paper's or the class's, in any case; first one of one's ``own``."""
    everything = {**registry, **(own or {})}
    known = {kind.__name__.lower(): kind for kind in registry.values()}
    known = {each.lower(): kind for each, kind in registry.items()} | known
    known |= {each.lower(): kind for each, kind in (own or {}).items()}
    if name.lower() not in known:
        raise ValueError(f"algorithm: {unknown(name, everything)}")
    return known[name.lower()]


def name_of(kind: type[Algorithm]) -> str:
    """The name of an algorithm in its paper; of one without a name of its own, that of the class."""
    return vars(kind).get("name") or kind.__name__


def problem_class(problem: Problem) -> str:
    """What ``Algorithm.solves`` calls this problem."""
    if isinstance(problem, Bilevel) and problem.lower_level == "local":
        return "bilevel-local"
    return problem.kind


def check_solves(algorithm: Algorithm, problem: Problem) -> None:
    """Raises if the algorithm is not one for this class of problem, naming those that are."""
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"algorithm must be an algorithm such as rk.MeFBO(), or its name, got {algorithm!r}")
    wanted = problem_class(problem)
    if wanted in algorithm.solves:
        return
    fitting = ", ".join(name for name, kind in registry.items() if wanted in kind.solves)
    hint = ""
    if "bilevel" in algorithm.solves and wanted in ("minimax", "weighting"):
        hint = "; or give problem.as_bilevel()"
    if "bilevel-local" in algorithm.solves and wanted == "bilevel":
        hint = "; or state that every client has a lower level of its own: Bilevel(..., lower_level='local')"
    raise ValueError(
        f"algorithm: {name_of(type(algorithm))} solves {' and '.join(algorithm.solves)} problems, this is a {wanted} "
        f"problem. Algorithms for it: {fitting}{hint}"
    )
