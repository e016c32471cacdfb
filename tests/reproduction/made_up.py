"""Searches and results that nobody computed."""


def searched(plan, rates=None, seconds=120.0):
    """What a search might have found."""
    given = {"eta_x": 0.01, "eta_y": 0.1, "eta_z": 0.1}
    for name in plan.falling:
        given[name] = {"schedule": "Cosine", "start": 0.1, "end": 0.005, "rounds": float(plan.settings.rounds)}
    return {
        "digest": plan.digest, "budget": plan.budget, "growth": plan.growth, "seed": plan.settings.seed,
        "rounds": plan.settings.rounds, "metric": plan.metric, "score": 1.0, "frozen": 2.0,
        "rates": rates or given, "ranges": {}, "ends": [], "trials": 17, "diverged": 0, "runs": 5.0, "seconds": seconds,
    }  # fmt: skip


def result(which, cell, values, diverged=(), seconds=60.0):
    """What a cell might have come to, with the same values in every column unless they are given by column."""
    columns = values if isinstance(values, dict) else {str(point): values for point in which.at(cell.size)}
    last = columns.get(str(which.at(cell.size)[-1])) if which.at(cell.size) else None
    numbers = [0.0 if value is None else value for value in last or [0.0]]
    return {
        "experiment": cell.experiment, "setting": cell.setting, "method": cell.method, "size": cell.size,
        "digest": cell.digest, "metric": which.metric, "at": which.at(cell.size), "values": columns,
        "last": {which.metric: last, **dict.fromkeys(which.also, numbers)},
        "curve": {
            "round": [0, cell.settings.rounds], "exchanges": [0.0, 1.0], "mean": [1.0, numbers[0]], "deviation": None,
        },
        "megabytes": 1.0, "diverged": list(diverged), "seconds": seconds, "settings": cell.settings.tables(),
        "search": None if cell.search is None else searched(cell.search),
        "environment": {"cores": 1, "date": "2026-01-02 03:04 UTC"},
    }  # fmt: skip
