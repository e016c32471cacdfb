"""Rookery: federated nested optimization.

``import rookery as rk``. State a problem (``rk.Bilevel``, ``rk.Minimax``, ``rk.ClientWeighting``) with plain loss
functions, say who holds which data (``rk.Clients``), and ``rk.solve`` it with any algorithm.
"""

from importlib.metadata import version

from rookery import _importing  # noqa: F401
from rookery.aggregation import attacks
from rookery.aggregation.privacy import AdaptiveClip, ClientPrivacy
from rookery.aggregation.robust import (
    CenteredClip,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormClip,
    Rule,
    TrimmedMean,
)
from rookery.aggregation.secure.options import SecureSum
from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Reply, Server
from rookery.algorithm.views import Context, Local
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
from rookery.algorithms.registry import registry
from rookery.algorithms.rfho import RfhoCW, RfhoForwardCW
from rookery.algorithms.sagda import FSGDA, SAGDA
from rookery.algorithms.simfbo import ASFBO, LAASFBO, ShroFBO, SimFBO
from rookery.algorithms.sustain import SustainCW, SustainPlainCW, SustainRandomCW
from rookery.api import solve, solve_many, tune
from rookery.engines.base import Divergence, Engine, Run, Session, Stopped
from rookery.engines.flower.engine import FederationError, Flower
from rookery.engines.homes import own_clients
from rookery.engines.simulator import Simulator
from rookery.experiment.python_run import run
from rookery.problem import measures, partition
from rookery.problem.clients import Clients, Split
from rookery.problem.participation import Bernoulli, Full, Replay, Steps, Uniform
from rookery.problem.problems import Bilevel, ClientWeighting, Minimax
from rookery.problem.schedules import Cosine, Power, Schedule
from rookery.problem.sets import Ball, Box, NonNegative, Product, Simplex, WholeSpace
from rookery.processes import join, leave
from rookery.solving.best import Best
from rookery.solving.check import check_algorithm
from rookery.solving.history import History
from rookery.solving.lanes import Lanes
from rookery.solving.solution import Diverged, Solution
from rookery.tuning.result import Tuning

from rookery import tasks  # isort: skip

__version__ = version("rookery")
"""As pyproject.toml has it."""

__all__ = [
    # problems
    "Bilevel",
    "ClientWeighting",
    "Minimax",
    # sets
    "Ball",
    "Box",
    "NonNegative",
    "Product",
    "Simplex",
    "WholeSpace",
    # clients and participation
    "Clients",
    "Split",
    "Bernoulli",
    "Full",
    "Replay",
    "Steps",
    "Uniform",
    # schedules
    "Cosine",
    "Power",
    "Schedule",
    # solving
    "solve",
    "solve_many",
    "run",
    "tune",
    "Tuning",
    "Lanes",
    "Solution",
    "Best",
    "History",
    "Stopped",
    "Diverged",
    "Divergence",
    # trust: robust rules, attacks for simulation, privacy
    "Rule",
    "TrimmedMean",
    "Median",
    "GeometricMedian",
    "Krum",
    "MultiKrum",
    "NormClip",
    "CenteredClip",
    "attacks",
    "ClientPrivacy",
    "SecureSum",
    "AdaptiveClip",
    # algorithms by name
    "registry",
    # bilevel, one lower level for all
    "MeFBO",
    "FedBiO",
    "FedBiOAcc",
    "SimFBO",
    "ShroFBO",
    "ASFBO",
    "LAASFBO",
    "FedNest",
    "FedNestSGD",
    "FedNestRandom",
    "FedNestCode",
    "LFedNest",
    "LFedNestSVRG",
    "FedMBO",
    "FBOAggITD",
    "FBOAggITDSVRG",
    "FBOITD",
    "CommFedBiO",
    "LocalBSGVR",
    "LocalBSGM",
    "AdaFBiO",
    "FedAvg",
    # bilevel, a lower level of each client's own
    "FedBiOLocal",
    "FedBiOAccLocal",
    "DistBiO",
    "DistBiOAcc",
    # minimax
    "FedSGDAPlus",
    "FedSGDAM",
    "LocalSGDA",
    "LocalSGDAPlus",
    "MomentumLocalSGDA",
    "FSGDA",
    "SAGDA",
    "CODAPlus",
    "CODASCA",
    "FedNestMinimax",
    "LFedNestMinimax",
    # client weighting
    "PrimalDual",
    "PrimalDualRandom",
    "ExactGD",
    "FedNestCW",
    "SustainCW",
    "SustainPlainCW",
    "SustainRandomCW",
    "RfhoCW",
    "RfhoForwardCW",
    "AFL",
    "ValidationOnly",
    "AverageWeights",
    "FixedWeights",
    # writing algorithms
    "Algorithm",
    "Exchange",
    "Reply",
    "Repeat",
    "Server",
    "Local",
    "Context",
    "check_algorithm",
    # engines
    "Engine",
    "Run",
    "Session",
    "Simulator",
    "join",
    "leave",
    "own_clients",
    "Flower",
    "FederationError",
    # measures, partitions and tasks, three modules
    "measures",
    "partition",
    "tasks",
]
