"""Programs that tests start and kill, and warm machines."""

import os
import subprocess
import sys

import pytest
from processes_seen import PROGRAM, wait_for_text

from workbench.launch import tethered
from workbench.launch.machines import Machines


@pytest.fixture
def start_owner(tmp_path):
    """Starts a program, tethered or not, that is killed after the test; returns it with the words that it has said."""
    owners = []

    def start(program, *arguments, under_tether=False, **options):
        said = tmp_path / f"said-{len(owners)}"
        command = [sys.executable, "-c", PROGRAM + program, str(said), *arguments]
        owners.append(subprocess.Popen(tethered(command, os.getpid()) if under_tether else command, **options))
        return owners[-1], wait_for_text(said).split()

    yield start
    for owner in owners:
        with owner:  # waits for it and closes its pipes
            owner.kill()


@pytest.fixture(scope="session")
def fleet():
    """Machines that are started in no time, of which whoever uses them leaves none running."""
    with Machines(preload=("torch.distributed",), echo=False) as machines:
        yield machines
