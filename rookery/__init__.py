"""Rookery: federated nested optimization.

``import rookery as rk``. State a problem (``rk.Bilevel``, ``rk.Minimax``, ``rk.ClientWeighting``) with plain loss
functions, say who holds which data (``rk.Clients``), and ``rk.solve`` it with any algorithm.
"""

from rookery import measures, partition
from rookery.algorithm import Algorithm, Context, Exchange, Local, Repeat, Server
from rookery.algorithms import algorithms
from rookery.algorithms.aggitd import FBOAggITD
from rookery.algorithms.codasca import CODASCA, CODAPlus
from rookery.algorithms.commfedbio import CommFedBiO
from rookery.algorithms.fedavg import FedAvg
from rookery.algorithms.fedbio import DistBiO, DistBiOAcc, FedBiO, FedBiOAcc, FedBiOAccLocal, FedBiOLocal
from rookery.algorithms.fedmbo import FedMBO
from rookery.algorithms.fednest import (
    FedNest,
    FedNestMinimax,
    FedNestSGD,
    LFedNest,
    LFedNestMinimax,
    LFedNestSVRG,
)
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
from rookery.checks import check_algorithm
from rookery.clients import Clients, Split
from rookery.engines.flower.engine import FederationError, Flower
from rookery.engines.simulator import Simulator
from rookery.history import History
from rookery.participation import Bernoulli, Full, Replay, Steps, Uniform
from rookery.problems import Bilevel, ClientWeighting, Minimax
from rookery.schedules import Cosine, Power, Schedule
from rookery.sets import Ball, Box, NonNegative, Product, Simplex, WholeSpace
from rookery.solve import Diverged, Divergence, Lanes, Solution, solve, solve_many

__version__ = "0.1.0"

__all__ = [
    "AFL",
    "ASFBO",
    "CODASCA",
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
    "FedAvg",
    "FedBiO",
    "FedBiOAcc",
    "FedBiOAccLocal",
    "FedBiOLocal",
    "FedMBO",
    "FedNest",
    "FedNestCW",
    "FedNestMinimax",
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
    "SustainCW",
    "Uniform",
    "ValidationOnly",
    "WholeSpace",
    "algorithms",
    "check_algorithm",
    "measures",
    "partition",
    "solve",
    "solve_many",
]
