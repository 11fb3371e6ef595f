"""An etcd server for a test, on free ports of this machine."""

import contextlib
import shutil
import socket
import subprocess

import pytest

from workbench.techniques.gemini.runtime.control.store import EtcdKeyValueStore
from workbench.techniques.gemini.runtime.control.store import wait_for_keys

START_S = 30.0  # most seconds a server needs on a busy machine


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running_etcd(folder):
    """Start a server that keeps its data in a folder, give its URL, and end it; skip the test where there is none."""
    if shutil.which("etcd") is None:
        pytest.skip("the program etcd is not installed (Debian: apt-get install etcd-server)")
    pytest.importorskip("etcd3gw", reason='the client of etcd is not installed: pip install "workbench[etcd]"')
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command = ["etcd", "--data-dir", str(folder), "--log-level", "error", "--listen-client-urls", client]
    command += ["--advertise-client-urls", client, "--listen-peer-urls", peer]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for_keys(_Answering(client), {"the etcd server": "any"}, START_S)
            yield client
        finally:
            server.kill()


class _Answering:
    """Gives a value as soon as a server answers at all."""

    def __init__(self, url):
        self._store = EtcdKeyValueStore(url)

    def get(self, key):
        self._store.get(key)
        return b"it answers"
