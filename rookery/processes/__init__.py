"""Several processes that make runs together, the same command on each: how they meet, talk, and notice that one is gone."""

from rookery.processes.failure import Lost
from rookery.processes.group import Group
from rookery.processes.joining import broken, current, is_first, join, leave, on_first, together
from rookery.processes.saying import SAID, say
from rookery.processes.wire import free_port

__all__ = [
    "SAID",
    "Group",
    "Lost",
    "broken",
    "current",
    "free_port",
    "is_first",
    "join",
    "leave",
    "on_first",
    "say",
    "together",
]
