"""Arrays by name in a file of the safetensors format."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

_UNREADABLE = (SafetensorError, OSError, ValueError, TypeError, KeyError, RecursionError)


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(the arrays by name, the metadata) of a file; whatever is wrong with it is told in one line."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dictionary)
            return arrays, file.metadata() or {}
    except _UNREADABLE as error:
        raise ValueError(f"{path} is damaged, or no file of a model: {' '.join(str(error).split())}") from None
