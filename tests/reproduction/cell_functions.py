"""Functions that the tests run as cells."""

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy


@dataclass(frozen=True)
class Score:
    task: str
    score: float


def score(task: str, seed: int, size: int = 1) -> Score | int:
    if task == "raises":
        raise ValueError("no such task")
    if task == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "hangs":
        threading.Event().wait()
    if task == "counts":
        return 1
    return Score(task=task, score=seed * size * 2.0)


def drawn(seed: int) -> dict:
    """What the process's own generators give, and how many threads it has for its sums."""
    import torch

    drawn = {"python": random.random(), "numpy": numpy.random.rand(), "torch": torch.rand(())}
    return {**drawn, "threads": torch.get_num_threads(), "seed": seed, "nan": float("nan")}


def waits(place: int, folder: str) -> dict:
    """Leave a mark, then wait for permission; the first cell has it."""
    with (Path(folder) / f"ran-{place}").open("a") as file:
        file.write(f"{os.getpid()}\n")
    while place and not (Path(folder) / f"go-{place}").exists():
        time.sleep(0.02)
    return {"bytes": 8, "place": place}
