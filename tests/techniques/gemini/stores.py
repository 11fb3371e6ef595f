"""Stores for tests: a dictionary, which is their definition, and an etcd server on free ports of this machine."""

import contextlib
import shutil
import socket
import subprocess
import time

import pytest

from workbench.techniques.gemini.runtime import EtcdKeyValueStore, StoreUnavailable
from workbench.techniques.gemini.runtime.control.store import check_change, checked_value

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
            wait_for_answer(EtcdKeyValueStore(client))
            yield client
        finally:
            server.kill()


def wait_for_answer(store):
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            return store.get("any")
        except StoreUnavailable:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


class MemoryKeyValueStore:
    """The definition of a store: a dictionary, for one process."""

    def __init__(self):
        self.values = {}

    def get(self, key):
        return self.values.get(key)

    def set(self, key, value):
        self.values[key] = checked_value("value", value)

    def compare_set(self, key, expected, desired):
        check_change(expected, desired)
        if self.values.get(key) == expected:
            self.values[key] = desired
        return self.values.get(key)

    def close(self):
        pass
