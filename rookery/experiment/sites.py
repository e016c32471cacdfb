"""A problem by name, as a node or a server without data opens it."""

from pathlib import Path

from rookery.engines.flower.site import Site
from rookery.experiment.settings import read_settings
from rookery.experiment.source import open_source


def open_site(name: str) -> Site:
    """The problem of a module, a Python file, a task, or a TOML file of settings (a run's ``config.toml``).

    Of a module or task alone the options are the defaults, and the seed is 0.
    """
    if name.endswith(".toml"):
        return read_settings(Path(name)).make_site()
    source = open_source(name)
    options = source.default_options(source.datasets[0])
    clients = source.defaults(source.datasets[0], options, 0, False).clients
    return source.site(source.datasets[0], clients, 0, False, options)


def site_title(name: str) -> str:
    """What a run of this problem is called."""
    return Path(name).stem if name.endswith(".toml") else open_source(name).title
