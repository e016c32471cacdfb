"""Rookery: federated nested optimization.

``import rookery as rk``. State a problem (``rk.Bilevel``, ``rk.Minimax``, ``rk.ClientWeighting``) with plain loss
functions, say who holds which data (``rk.Clients``), and ``rk.solve`` it with any algorithm.
"""

from rookery import measures, partition
from rookery.algorithm import Algorithm, Context, Exchange, Local, Repeat, Server
from rookery.algorithms import algorithms
from rookery.algorithms.fedbio import DistBiO, DistBiOAcc, FedBiO, FedBiOAcc, FedBiOAccLocal, FedBiOLocal
from rookery.algorithms.fedsgda import FedSGDAM, FedSGDAPlus, LocalSGDA, LocalSGDAPlus
from rookery.algorithms.mefbo import MeFBO
from rookery.algorithms.primal_dual import PrimalDual
from rookery.algorithms.simfbo import ASFBO, LAASFBO, ShroFBO, SimFBO
from rookery.clients import Clients, Split
from rookery.engines.simulator import Simulator
from rookery.history import History
from rookery.participation import Bernoulli, Full, Replay, Steps, Uniform
from rookery.problems import Bilevel, ClientWeighting, Minimax
from rookery.schedules import Cosine, Power, Schedule
from rookery.sets import Ball, Box, NonNegative, Product, Simplex, WholeSpace
from rookery.solve import Diverged, Divergence, Lanes, Solution, solve, solve_many

__version__ = "0.1.0"

__all__ = [
    "ASFBO",
    "LAASFBO",
    "Algorithm",
    "Ball",
    "Bernoulli",
    "Bilevel",
    "Box",
    "ClientWeighting",
    "Clients",
    "Context",
    "Cosine",
    "DistBiO",
    "DistBiOAcc",
    "Diverged",
    "Divergence",
    "Exchange",
    "FedBiO",
    "FedBiOAcc",
    "FedBiOAccLocal",
    "FedBiOLocal",
    "FedSGDAM",
    "FedSGDAPlus",
    "Full",
    "History",
    "Lanes",
    "Local",
    "LocalSGDA",
    "LocalSGDAPlus",
    "MeFBO",
    "Minimax",
    "NonNegative",
    "Power",
    "PrimalDual",
    "Product",
    "Repeat",
    "Replay",
    "Schedule",
    "Server",
    "ShroFBO",
    "SimFBO",
    "Simplex",
    "Simulator",
    "Solution",
    "Split",
    "Steps",
    "Uniform",
    "WholeSpace",
    "algorithms",
    "measures",
    "partition",
    "solve",
    "solve_many",
]
