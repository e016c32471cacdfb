"""What a run was made with: versions, revision, hardware."""

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rookery import devices


def environment() -> dict[str, Any]:
    """Versions, the git revision of the working directory, date and hardware."""
    packages = ("rookery", "jax", "jaxlib", "equinox", "optax", "numpy")
    found: dict[str, Any] = {name: version(name) for name in packages}
    found |= {"python": platform.python_version(), "platform": platform.platform(), "cores": devices.usable_cores()}
    found |= {"processor": _processor(), "device": devices.name()}
    found["date"] = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    for name, command in {"git": ("rev-parse", "HEAD"), "git_changes": ("status", "--porcelain")}.items():
        try:
            told = subprocess.run(
                ("git", *command), capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            continue
        found[name] = told if name == "git" else bool(told)
    return found


def _processor() -> str:
    """Its name where the system tells it, else the architecture."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in told.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()
