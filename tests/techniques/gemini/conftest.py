"""One fleet of warm machines and one server of etcd for all tests of the technique."""

import contextlib
import shutil
import socket
import subprocess

import pytest
from processes_seen import wait_for

from workbench.launch.machines import Machines
from workbench.techniques.gemini.control import EtcdKeyValueStore, StoreUnavailable
from workbench.techniques.gemini.control.service import serve_store
from workbench.techniques.gemini.measured import reliability
from workbench.techniques.gemini.runtime.checkpoints import PRELOAD


@pytest.fixture(scope="session")
def fleet():
    """Machines that are started in no time, of which whoever uses them leaves none running."""
    with Machines(preload=(*PRELOAD, reliability.__name__), echo=False) as machines:
        yield machines


@pytest.fixture
def served(fleet):
    """Serves the embedded store, at a port, on a machine of its own, and gives its address."""

    @contextlib.contextmanager
    def serve(port=0):
        fleet.start("store", serve_store, port)
        addresses = []
        while not addresses:
            addresses = [event.message.details["address"] for event in fleet.wait(1.0) if hasattr(event, "message")]
        yield addresses[0]
        fleet.kill_all()

    return serve


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
