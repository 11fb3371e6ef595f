"""The key-value store where machines meet: the contract, torch's TCPStore (the default) and etcd behind it.

Any process that reaches the store can write there, so values are signed with a token that only the training has.
"""

import base64
import contextlib
import datetime
import hmac
import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

import torch.distributed as dist

__all__ = ["EtcdKeyValueStore", "KeyValueStore", "SignedKeyValueStore", "StoreUnavailable", "TcpKeyValueStore"]

MAC_BYTES = 32  # HMAC-SHA256 of a key and its value, before the value
NOTHING = b"\0"  # stands for a value that is empty, which cannot be compared


class StoreUnavailable(RuntimeError):
    """The store does not answer now; a later call may find it again, possibly empty."""


@runtime_checkable
class KeyValueStore(Protocol):
    """Keys and values that all machines see; every call returns, or raises StoreUnavailable, within a time."""

    def get(self, key: str) -> bytes | None:
        """Return the value, or None if there is none."""

    def set(self, key: str, value: bytes) -> None:
        """Write a value, which must not be empty."""

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if the value is `expected` (None: if there is none); return the value afterwards."""

    def close(self) -> None:
        """Close the connection; calling it again does nothing."""


def check_values(**values: bytes | None) -> None:
    """Refuse an empty value, which TCPStore reads as "no such key"; None is no value."""
    for name, value in values.items():
        if value is not None and (not isinstance(value, bytes) or not value):
            raise ValueError(f"{name} is {value!r}; it must be bytes, at least one")


class SignedKeyValueStore:
    """A store whose values are signed with a token: what others have written counts as missing, and is replaced."""

    def __init__(self, store: KeyValueStore, token: bytes):
        self._store = store
        self._token = token
        self._forged: dict[str, bytes] = {}  # what was read last where it was not signed
        self._dropped: list[str] = []  # keys

    def get(self, key: str) -> bytes | None:
        raw = self._store.get(key)
        if raw == b"":
            self._store.set(key, NOTHING)
            raw = NOTHING
        return self._verified(key, raw)

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, self._signed(key, value))

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        known = self._forged.get(key) if expected is None else self._signed(key, expected)
        return self._verified(key, self._store.compare_set(key, known, self._signed(key, desired)))

    def take_dropped(self) -> list[str]:
        """Return the keys at which forged values were found since the last call; each value counts once."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def close(self) -> None:
        self._store.close()

    def _signed(self, key: str, value: bytes) -> bytes:
        check_values(value=value)
        return hmac.digest(self._token, key.encode() + b"\0" + value, "sha256") + value

    def _verified(self, key: str, raw: bytes | None) -> bytes | None:
        value = (raw or b"")[MAC_BYTES:]
        if raw is None or (value and hmac.compare_digest(self._signed(key, value), raw)):
            self._forged.pop(key, None)
            return value or None
        if self._forged.get(key) != raw:
            self._forged[key] = raw
            self._dropped.append(key)
        return None


class _Client:
    """A connection whose calls are made one after the other in a thread; after a late one it is of no more use."""

    def __init__(self, connect: Callable[[], dist.TCPStore]) -> None:
        self._connect = connect
        self._calls: queue.SimpleQueue[tuple[Future, Callable[[dist.TCPStore], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="store", daemon=True).start()

    def _work(self) -> None:
        connection = None
        while (call := self._calls.get()) is not None:
            end, question = call
            try:
                connection = connection or self._connect()
                end.set_result(question(connection))
            except Exception as error:
                end.set_exception(error)

    def ask(self, question: Callable[[dist.TCPStore], Any], timeout_s: float) -> Any:
        """Return the answer; TimeoutError if it takes longer."""
        end: Future = Future()
        self._calls.put((end, question))
        try:
            return end.result(timeout_s)
        except TimeoutError:
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None

    def close(self) -> None:
        """End the thread after its last call."""
        self._calls.put(None)


class TcpKeyValueStore(KeyValueStore):
    """A client of torch's TCPStore that finds a restarted server, and gives up waiting for one that is stopped.

    torch's own calls wait for a stopped server without limit, so they are made in a thread.
    """

    def __init__(self, address: str, port: int, *, timeout_s: float = 1.0):
        self._place = address, port
        self._timeout_s = timeout_s
        self._client: _Client | None = None

    def get(self, key: str) -> bytes | None:
        return self._ask(lambda client: bytes(client.get(key)) if client.check([key]) else None)

    def set(self, key: str, value: bytes) -> None:
        check_values(value=value)
        self._ask(lambda client: client.set(key, value))  # type: ignore[arg-type]  # its stubs know only text

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        check_values(desired=desired, expected=expected)

        def question(client: dist.TCPStore) -> bytes:
            return bytes(client.compare_set(key, expected or b"", desired))  # type: ignore[arg-type]  # as above

        now = self._ask(question)
        # For a missing key the server echoes what was expected.
        return None if now == expected and now != desired else now

    def _ask(self, question: Callable[[dist.TCPStore], Any]) -> Any:
        address, port = self._place
        try:
            self._client = self._client or _Client(partial(_connect, self._place, self._timeout_s))
            return self._client.ask(question, self._timeout_s)
        except (dist.DistError, OSError) as error:  # a TimeoutError is an OSError
            self.close()
            reason = str(error).partition("\n")[0]
            raise StoreUnavailable(f"the store at {address}:{port} does not answer: {reason}") from error

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    __del__ = close  # or the thread of a forgotten client would stay


def _connect(place: tuple[str, int], timeout_s: float) -> dist.TCPStore:
    # torch would try again and again where nobody listens.
    socket.create_connection(place, timeout_s).close()
    return dist.TCPStore(*place, None, False, datetime.timedelta(seconds=timeout_s), wait_for_workers=False)


class EtcdKeyValueStore(KeyValueStore):
    """A client of an etcd server's HTTP gateway, without authentication; every key begins with the prefix."""

    def __init__(self, url: str, *, prefix: str = "", timeout_s: float = 1.0):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
            raise ValueError(f"url is {url!r}; it must be http://host:port or https://host:port")
        try:
            from etcd3gw.client import Etcd3Client
            from requests import Session
        except ImportError as error:
            raise ImportError("etcd needs its client: pip install etcd3gw") from error
        session = Session()
        session.trust_env = False  # no proxy between the machines of a cluster
        self._client: Any = Etcd3Client(
            parts.hostname, parts.port, parts.scheme, timeout=timeout_s, api_path="/v3/", session=session
        )
        self._url = url
        self._prefix = prefix

    def get(self, key: str) -> bytes | None:
        with self._asking():
            values = self._client.get(self._prefix + key)
        return values[0] if values else None

    def set(self, key: str, value: bytes) -> None:
        check_values(value=value)
        with self._asking():
            self._client.put(self._prefix + key, value)

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        check_values(desired=desired, expected=expected)
        name, new = (base64.b64encode(data).decode() for data in ((self._prefix + key).encode(), desired))
        if expected is None:
            condition = {"target": "VERSION", "version": 0}
        else:
            condition = {"target": "VALUE", "value": base64.b64encode(expected).decode()}
        change = {
            "compare": [{"key": name, "result": "EQUAL", **condition}],
            "success": [{"request_put": {"key": name, "value": new}}],
            "failure": [{"request_range": {"key": name}}],
        }
        with self._asking():
            answer = self._client.transaction(change)
        if answer.get("succeeded"):
            return desired
        pairs = answer["responses"][0]["response_range"].get("kvs", [])
        return base64.b64decode(pairs[0]["value"]) if pairs else None

    def delete_all(self) -> None:
        """Remove every key with this store's prefix."""
        if not self._prefix:
            raise ValueError("prefix is empty; it must not be, or delete_all would delete all keys of the server")
        with self._asking():
            self._client.delete_prefix(self._prefix)

    @contextlib.contextmanager
    def _asking(self):
        from etcd3gw.exceptions import Etcd3Exception
        from requests import RequestException

        try:
            yield
        except (Etcd3Exception, RequestException, OSError) as error:
            raise StoreUnavailable(f"the store at {self._url} does not answer: {error}") from error

    def close(self) -> None:
        self._client.session.close()
