"""Programs that tests start and kill."""

import os
import subprocess
import sys

import pytest
from processes_seen import PROGRAM, wait_for_text

from workbench.launch import tethered
from workbench.launch.fork_server import WARM_VARIABLE


@pytest.fixture
def start_owner(tmp_path):
    """Starts a program, tethered or not, that is killed after the test; returns it with the words that it has said."""
    owners = []
    environment = {name: value for name, value in os.environ.items() if name != WARM_VARIABLE}  # all is below the owner

    def start(program, *arguments, under_tether=False, **options):
        said = tmp_path / f"said-{len(owners)}"
        command = [sys.executable, "-c", PROGRAM + program, str(said), *arguments]
        command = tethered(command, os.getpid()) if under_tether else command
        owners.append(subprocess.Popen(command, env=environment, **options))
        return owners[-1], wait_for_text(said).split()

    yield start
    for owner in owners:
        with owner:  # waits for it and closes its pipes
            owner.kill()
