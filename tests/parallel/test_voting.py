"""Servers of ranks that vote listen on loopback alone; torchft, a package of its own, is imitated."""

import socket
import sys
from datetime import timedelta
from types import ModuleType, SimpleNamespace

import psutil

from tests.cases import tidy
from workbench.parallel.voting import Voting


class Lighthouse:
    """Listens where it is told to, as torchft's does, and names the host in its address."""

    def __init__(self, bind: str, **options):
        address, _, port = bind.rpartition(":")
        self._listening = socket.create_server((address, int(port)))

    def address(self) -> str:
        return f"http://{socket.gethostname()}:{self._listening.getsockname()[1]}"

    def shutdown(self) -> None:
        self._listening.close()


def listening() -> set[tuple[str, int]]:
    connections = psutil.Process().net_connections()
    return {tuple(connection.laddr) for connection in connections if connection.status == psutil.CONN_LISTEN}


def voting() -> tuple[list, dict]:
    """Return where this rank listens more than before, and its manager's options."""
    torchft, coordination = ModuleType("torchft"), ModuleType("torchft.coordination")
    torchft.Manager = lambda **options: SimpleNamespace(options=options, shutdown=lambda wait: None)
    torchft.ProcessGroupGloo = lambda timeout: timedelta
    coordination.LighthouseServer = Lighthouse
    sys.modules |= {"torchft": torchft, "torchft.coordination": coordination}
    before = listening()
    try:
        votes = Voting(print, dict)
    finally:
        del sys.modules["torchft"], sys.modules["torchft.coordination"]
    where, options = listening() - before, votes.manager.options
    votes.close()
    return sorted(where), {name: options[name] for name in ("lighthouse_addr", "store_addr", "store_port")}


def test_lighthouse_and_store_listen_on_loopback_alone(pools):
    (first, options), (second, other_options) = pools(2).run(tidy, voting)
    assert len(first) == 2  # the lighthouse and the first rank's store
    assert len(second) == 1
    assert {address for address, _ in first + second} == {"127.0.0.1"}
    for of_rank, where in ((options, first), (other_options, second)):
        assert (of_rank["store_addr"], of_rank["store_port"]) in where
        assert of_rank["lighthouse_addr"] == options["lighthouse_addr"]
    assert options["lighthouse_addr"] in {f"http://127.0.0.1:{port}" for _, port in first}
