"""torch's TCPStore behind the store's contract: the default, which needs nothing installed.

Source: torch.distributed.TCPStore.
Simplified: one server without copies; when it is killed, what it kept is gone, and those who wrote write again. The
client of torch never connects anew; here the next call after an error makes a new connection.
Left out: a limit on waiting for a server that neither answers nor ends (a stopped process, a machine that vanished
from the network): torch's client has none, so its caller stands still until the server goes on. etcd has a limit.
"""

import contextlib
import datetime
import socket

import torch.distributed as dist

from .store import StoreUnavailable, checked_value

__all__ = ["TcpKeyValueStore", "listening_socket", "serve_tcp_store"]

BACKLOG = 512  # connections that may wait to be accepted


def listening_socket(address: str, port: int = 0) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one, another one may have been used just before."""
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def serve_tcp_store(listening: socket.socket) -> dist.TCPStore:
    """Serve an empty store as long as the returned object lives; the socket is taken over."""
    address, port = listening.getsockname()
    return dist.TCPStore(address, port, None, True, wait_for_workers=False, master_listen_fd=listening.detach())


class TcpKeyValueStore:
    """A client that finds its server again after it was restarted."""

    def __init__(self, address: str, port: int, *, timeout_s: float = 1.0):
        self._place = address, port
        self._timeout_s = timeout_s
        self._timeout = datetime.timedelta(seconds=timeout_s)
        self._client: dist.TCPStore | None = None

    def get(self, key: str) -> bytes | None:
        """Return the value, or None if there is none."""
        with self._asking() as client:
            if not client.check([key]):
                return None
            try:
                return bytes(client.get(key))
            except dist.DistStoreError:  # deleted in between
                return None

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""
        checked_value("value", value)
        with self._asking() as client:
            client.set(key, value)

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if the value is `expected`; return the value that is there afterwards."""
        checked_value("desired", desired)
        if expected is not None:
            checked_value("expected", expected)
        with self._asking() as client:
            now = bytes(client.compare_set(key, expected or b"", desired))
        # For a missing key the server echoes what was expected.
        return None if now == expected and now != desired else now

    def delete(self, key: str) -> bool:
        """Remove a value; return whether there was one."""
        with self._asking() as client:
            return client.delete_key(key)

    @contextlib.contextmanager
    def _asking(self):
        try:
            if self._client is None:
                self._client = self._connect()
            yield self._client
        except (dist.DistError, OSError) as error:
            self._client = None
            address, port = self._place
            reason = str(error).partition("\n")[0]
            raise StoreUnavailable(f"the store at {address}:{port} does not answer: {reason}") from error

    def _connect(self) -> dist.TCPStore:
        # torch would try again and again where nobody listens.
        socket.create_connection(self._place, self._timeout_s).close()
        return dist.TCPStore(*self._place, None, False, self._timeout, wait_for_workers=False)

    def close(self) -> None:
        """Let go of the connection; calling it again does nothing."""
        self._client = None
