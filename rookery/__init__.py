"""Rookery: federated nested optimization.

``import rookery as rk``. State a problem (``rk.Bilevel``, ``rk.Minimax``, ``rk.ClientWeighting``) with plain loss
functions, say who holds which data (``rk.Clients``), and ``rk.solve`` it with any algorithm.
"""

from rookery import _importing  # noqa: F401
from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Reply, Server
from rookery.algorithm.views import Context, Local
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
from rookery.algorithms.registry import registry
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
from rookery.engines.flower.engine import FederationError, Flower
from rookery.engines.simulator import Simulator
from rookery.problem import measures, partition
from rookery.problem.clients import Clients, Split
from rookery.problem.participation import Bernoulli, Full, Replay, Steps, Uniform
from rookery.problem.problems import Bilevel, ClientWeighting, Minimax
from rookery.problem.schedules import Cosine, Power, Schedule
from rookery.problem.sets import Ball, Box, NonNegative, Product, Simplex, WholeSpace
from rookery.solving.api import Diverged, Divergence, Lanes, Solution, Stopped, solve, solve_many
from rookery.solving.check import check_algorithm
from rookery.solving.history import History

__version__ = "0.1.0"

__all__ = [
    "AFL",
    "ASFBO",
    "CODASCA",
    "FBOITD",
    "FSGDA",
    "LAASFBO",
    "SAGDA",
    "AdaFBiO",
    "Algorithm",
    "AverageWeights",
    "Ball",
    "Bernoulli",
    "Bilevel",
    "Box",
    "CODAPlus",
    "ClientWeighting",
    "Clients",
    "CommFedBiO",
    "Context",
    "Cosine",
    "DistBiO",
    "DistBiOAcc",
    "Diverged",
    "Divergence",
    "ExactGD",
    "Exchange",
    "FBOAggITD",
    "FBOAggITDSVRG",
    "FedAvg",
    "FedBiO",
    "FedBiOAcc",
    "FedBiOAccLocal",
    "FedBiOLocal",
    "FedMBO",
    "FedNest",
    "FedNestCW",
    "FedNestCode",
    "FedNestMinimax",
    "FedNestRandom",
    "FedNestSGD",
    "FedSGDAM",
    "FedSGDAPlus",
    "FederationError",
    "FixedWeights",
    "Flower",
    "Full",
    "History",
    "LFedNest",
    "LFedNestMinimax",
    "LFedNestSVRG",
    "Lanes",
    "Local",
    "LocalBSGM",
    "LocalBSGVR",
    "LocalSGDA",
    "LocalSGDAPlus",
    "MeFBO",
    "Minimax",
    "MomentumLocalSGDA",
    "NonNegative",
    "Power",
    "PrimalDual",
    "Product",
    "Repeat",
    "Replay",
    "Reply",
    "RfhoCW",
    "Schedule",
    "Server",
    "ShroFBO",
    "SimFBO",
    "Simplex",
    "Simulator",
    "Solution",
    "Split",
    "Steps",
    "Stopped",
    "SustainCW",
    "Uniform",
    "ValidationOnly",
    "WholeSpace",
    "check_algorithm",
    "measures",
    "partition",
    "registry",
    "solve",
    "solve_many",
]
