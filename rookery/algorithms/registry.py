"""The algorithms, one file a family."""

from rookery.algorithm.exchange import Algorithm
from rookery.algorithms.aggitd import FBOITD, FBOAggITD, FBOAggITDSVRG
from rookery.algorithms.codasca import CODASCA, CODAPlus
from rookery.algorithms.commfedbio import CommFedBiO
from rookery.algorithms.fedavg import FedAvg
from rookery.algorithms.fedbio import FedBiO, FedBiOAcc
from rookery.algorithms.fedbio_local import DistBiO, DistBiOAcc, FedBiOAccLocal, FedBiOLocal
from rookery.algorithms.fedmbo import FedMBO
from rookery.algorithms.fednest import FedNest, FedNestCode, FedNestRandom, FedNestSGD, LFedNest, LFedNestSVRG
from rookery.algorithms.fednest_minimax import FedNestMinimax, LFedNestMinimax
from rookery.algorithms.fedsgda import (
    FSGDA,
    SAGDA,
    FedSGDAM,
    FedSGDAPlus,
    LocalSGDA,
    LocalSGDAPlus,
    MomentumLocalSGDA,
)
from rookery.algorithms.localbs import AdaFBiO, LocalBSGM, LocalBSGVR
from rookery.algorithms.mefbo import MeFBO
from rookery.algorithms.primal_dual import PrimalDual
from rookery.algorithms.simfbo import ASFBO, LAASFBO, ShroFBO, SimFBO
from rookery.algorithms.weighting import (
    AFL,
    AverageWeights,
    ExactGD,
    FedNestCW,
    FixedWeights,
    RfhoCW,
    SustainCW,
    ValidationOnly,
)
from rookery.names import unknown
from rookery.problem.problems import Bilevel, Problem

registry: dict[str, type[Algorithm]] = {
    "MeFBO": MeFBO,
    "FedBiO": FedBiO,
    "FedBiOAcc": FedBiOAcc,
    "SimFBO": SimFBO,
    "ShroFBO": ShroFBO,
    "ASFBO": ASFBO,
    "LA-ASFBO": LAASFBO,
    "FedNest": FedNest,
    "FedNest_SGD": FedNestSGD,
    "LFedNest": LFedNest,
    "LFedNest_SVRG": LFedNestSVRG,
    "FedMBO": FedMBO,
    "FBO-AggITD": FBOAggITD,
    "CommFedBiO": CommFedBiO,
    "Local-BSGVR": LocalBSGVR,
    "Local-BSGM": LocalBSGM,
    "AdaFBiO": AdaFBiO,
    "FedAvg": FedAvg,
    "FedBiO-Local": FedBiOLocal,
    "FedBiOAcc-Local": FedBiOAccLocal,
    "DistBiO": DistBiO,
    "DistBiOAcc": DistBiOAcc,
    "FedSGDA+": FedSGDAPlus,
    "FedSGDA-M": FedSGDAM,
    "Local SGDA": LocalSGDA,
    "Local SGDA+": LocalSGDAPlus,
    "Momentum Local SGDA": MomentumLocalSGDA,
    "FSGDA": FSGDA,
    "SAGDA": SAGDA,
    "CODA+": CODAPlus,
    "CODASCA": CODASCA,
    "FedNest-minimax": FedNestMinimax,
    "LFedNest-minimax": LFedNestMinimax,
    "PrimalDual": PrimalDual,
    "GD-CW": ExactGD,
    "FedNest-CW": FedNestCW,
    "SUSTAIN-CW": SustainCW,
    "RFHO-CW": RfhoCW,
    "AFL": AFL,
    "val": ValidationOnly,
    "avg": AverageWeights,
    "opt": FixedWeights,
    "FedNest_random": FedNestRandom,
    "FedNest_code": FedNestCode,
    "FBO-AggITD_SVRG": FBOAggITDSVRG,
    "FBO-ITD": FBOITD,
}
"""All algorithms of the package by their papers' names."""


def by_name(name: str) -> type[Algorithm]:
    """The algorithm of this name, the paper's or the class's, in any case."""
    known = {each.lower(): kind for each, kind in registry.items()}
    known |= {kind.__name__.lower(): kind for kind in registry.values()}
    if name.lower() not in known:
        raise ValueError(f"algorithm: {unknown(name, registry)}")
    return known[name.lower()]


def name_of(kind: type[Algorithm]) -> str:
    """The name of an algorithm in its paper."""
    return next((name for name, each in registry.items() if each is kind), kind.__name__)


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
