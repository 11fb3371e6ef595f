"""Programs that tests start and kill, warm machines, and one server of etcd."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys

import pytest
from processes_seen import PROGRAM, wait_for, wait_for_text

from workbench.launch import tethered
from workbench.launch.control import EtcdKeyValueStore, StoreUnavailable
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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def etcd(tmp_path_factory):
    """The URL of a server of etcd; a test is skipped where there is none."""
    if shutil.which("etcd") is None:
        pytest.skip("the program etcd is not installed (Debian: apt-get install etcd-server)")
    pytest.importorskip("etcd3gw", reason="the client of etcd is not installed: pip install etcd3gw")
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command = ["etcd", "--data-dir", str(tmp_path_factory.mktemp("etcd")), "--log-level", "error"]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(lambda: answers(EtcdKeyValueStore(client)), 30.0)
            yield client
        finally:
            server.kill()


def answers(store) -> bool:
    with contextlib.suppress(StoreUnavailable):
        store.get("any")
        return True
    return False
