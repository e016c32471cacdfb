"""Kills runs at random moments and goes on with them: they must end as one that was left alone.

``python -m benchmarks.kills --simulator 70 --flower 30 --stops 20``. A kill is SIGKILL, to a command that runs or resumes,
at a moment drawn uniformly from the time that an undisturbed run takes, imports included; a stop is SIGINT, SIGINT twice
or SIGTERM, which must end with the line that says how to go on. What the simulator ends with must have the same bits, what
Flower's nodes end with must agree to 1e-5.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from rookery.experiment.folder import read_run

PATIENCE = 600.0
TASK = ("hyper-representation", "--algorithm", "FedBiOAcc", "--clients", "10", "--participants", "4", "--batch-size", "8",
        "--set", "hidden=4")  # fmt: skip
LENGTH = {
    "simulator": ("--rounds", "1500", "--every", "200", "--seeds", "2"),
    "flower": ("--rounds", "25", "--every", "10"),
}
STOPS = (("SIGINT",), ("SIGINT", "SIGINT"), ("SIGTERM",))


class Commands:
    """Commands that share compiled programs and do not wait for a terminal."""

    def __init__(self, scratch: Path):
        quiet = {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(scratch / "compiled")}
        self.environment = {**os.environ, **quiet, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "rookery", *arguments], env=self.environment, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=_hear_ctrl_c,
        )  # fmt: skip

    def begin(self, engine: str, folder: Path) -> "subprocess.Popen[str]":
        """Starts the run, or goes on with it if it began."""
        often = ("--checkpoint-seconds", "0.2")
        if (folder / "config.toml").exists():
            return self.start("resume", str(folder), *often)
        return self.start("run", *TASK, *LENGTH[engine], "--engine", engine, "--out", str(folder), *often)


def _hear_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a script


def disturbed(
    commands: Commands, engine: str, folder: Path, rng: np.random.Generator, longest: float, left: int, stops: bool
) -> Counter[str]:
    """One run, killed or stopped up to ``left`` times before it may end. Where it was when it happened."""
    where: Counter[str] = Counter()
    process = commands.begin(engine, folder)
    while where.total() < left:
        try:
            process.wait(rng.uniform(1.0 if stops else 0.0, longest))
            break
        except subprocess.TimeoutExpired:
            pass
        began, saved = (folder / "config.toml").exists(), (folder / "checkpoints").exists()
        where["with checkpoints" if saved else "begun" if began else "not begun"] += 1
        if stops:
            stop(process, STOPS[int(rng.integers(len(STOPS)))], folder)
        else:
            process.kill()
            process.communicate()
        process = commands.begin(engine, folder)
    _, errors = process.communicate(timeout=PATIENCE)
    if process.returncode != 0:
        raise SystemExit(f"{folder} did not end well: status {process.returncode}: {errors}")
    return where


def stop(process: "subprocess.Popen[str]", names: Sequence[str], folder: Path) -> None:
    """Sends signals; the command must end with their status and one line, which says how to go on if the run began."""
    for name in names:
        process.send_signal(getattr(signal, name))
        time.sleep(0.05)
    _, errors = process.communicate(timeout=PATIENCE)
    number = getattr(signal, names[0])
    outside = (folder / "result.safetensors").exists() or not folder.exists()
    if process.returncode == 0 or (outside and process.returncode == -number and not errors):
        return  # it was just done, or Python itself was just starting or ending
    status = 128 + number
    lines = errors.splitlines()
    known = len(lines) == 1 and lines[0].startswith(("Interrupted.", "Terminated."))
    if process.returncode != status or not known:
        raise SystemExit(f"{' '.join(names)} ended with status {process.returncode}: {errors}")


def same(engine: str, folder: Path, expected: Path) -> bool:
    """Whether a run ended as it should have."""
    mine, other = (read_run(each).history for each in (folder, expected))
    alike = [name for name in other.columns if name in ("round", "exchanges", "bytes_up", "grad_g")]
    if not all(np.array_equal(mine[name], other[name].reshape(mine[name].shape)) for name in alike):
        return False
    if engine == "simulator":
        return (folder / "result.safetensors").read_bytes() == (expected / "result.safetensors").read_bytes()
    found, wanted = (load_file(each / "result.safetensors") for each in (folder, expected))
    return all(np.allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5) for name in wanted)


def series(commands: Commands, engine: str, scratch: Path, seed: int, number: int, stops: bool) -> None:
    """Kills (or stops) so often, spread over as many runs as it takes; raises unless all of them end as they should."""
    whole = scratch / f"{engine}-whole"
    if not whole.exists():
        for folder in (scratch / "warm", whole):  # the first one compiles
            clock = time.monotonic()
            _, errors = commands.begin(engine, folder).communicate(timeout=PATIENCE)
            longest = time.monotonic() - clock
            if not (folder / "result.safetensors").exists():
                raise SystemExit(errors)
        (scratch / f"{engine}-seconds").write_text(str(longest))
        shutil.rmtree(scratch / "warm")
    longest = float((scratch / f"{engine}-seconds").read_text())
    rng, where, done = np.random.default_rng(seed), Counter[str](), 0
    clock = time.monotonic()
    while where.total() < number:
        folder = scratch / f"{engine}-run"
        begun = time.monotonic()
        hit = disturbed(commands, engine, folder, rng, longest, min(number - where.total(), 10), stops)
        if not hit:  # the machine is less busy than it was
            longest = min(longest, time.monotonic() - begun)
        where += hit
        done += 1
        if not same(engine, folder, whole):
            raise SystemExit(f"{engine}: a run that was {'stopped' if stops else 'killed'} ended otherwise: {folder}")
        shutil.rmtree(folder)
        print(f"{engine}: {where.total()} of {number}, {done} runs ended as they should", flush=True)
    told = ", ".join(f"{count} {name}" for name, count in where.items())
    kind = "stops" if stops else "kills"
    how = "bit-identical" if engine == "simulator" else "equal to 1e-5"
    seconds = time.monotonic() - clock
    print(f"{engine}: {number} {kind} ({told}), {number} resumed, {done} of {done} runs {how}; {seconds:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("simulator", "flower", "stops", "flower-stops"):
        parser.add_argument(f"--{name}", type=int, default=0, help=f"how many, {name}")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rookery-kills-") as place:
        scratch = Path(place)
        commands = Commands(scratch)
        for engine, number, stops in (
            ("simulator", asked.simulator, False),
            ("simulator", asked.stops, True),
            ("flower", asked.flower, False),
            ("flower", asked.flower_stops, True),
        ):
            if number:
                series(commands, engine, scratch, asked.seed, number, stops)


if __name__ == "__main__":
    main()
