"""The key-value store where machines meet: the contract, torch's TCPStore (the default) and etcd behind it.

Any process that reaches the store can write there, so values are signed with a token that only the training has.
"""

import datetime
import hmac
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
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


def check_values(**values: bytes | None) -> None:
    """Refuse an empty value, which TCPStore reads as "no such key"; None is no value."""
    for name, value in values.items():
        if value is not None and (not isinstance(value, bytes) or not value):
            raise ValueError(f"{name} is {value!r}; it must be bytes, at least one")


class SignedKeyValueStore:
    """A store whose values are signed with a token: what others have written counts as missing, and is replaced."""

    def __init__(self, store: KeyValueStore, token: bytes):
        self._store, self._token = store, token
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


class TcpKeyValueStore(KeyValueStore):
    """A client of torch's TCPStore that finds a restarted server, and gives up waiting for one that is stopped.

    torch's own calls wait for a stopped server without limit, so each is made in a thread.
    """

    def __init__(self, address: str, port: int, *, timeout_s: float = 1.0):
        self._place, self._timeout_s = (address, port), timeout_s
        self._connection: dist.TCPStore | None = None

    def get(self, key: str) -> bytes | None:
        return self._ask(lambda client: bytes(client.get(key)) if client.check([key]) else None)

    def set(self, key: str, value: bytes) -> None:
        check_values(value=value)
        self._ask(lambda client: client.set(key, value))

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        check_values(desired=desired, expected=expected)
        now = self._ask(lambda client: bytes(client.compare_set(key, expected or b"", desired)))
        # For a missing key the server echoes what was expected.
        return None if now == expected and now != desired else now

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        end: Future[tuple[dist.TCPStore, Any]] = Future()

        def work(connection: dist.TCPStore | None) -> None:
            try:
                if connection is None:
                    # torch would try again and again where nobody listens.
                    socket.create_connection(self._place, self._timeout_s).close()
                    limit = datetime.timedelta(seconds=self._timeout_s)
                    connection = dist.TCPStore(*self._place, None, False, limit, wait_for_workers=False)
                end.set_result((connection, question(connection)))
            except Exception as error:
                end.set_exception(error)

        threading.Thread(target=work, args=(self._connection,), name="store", daemon=True).start()
        self._connection = None  # of no more use after an error or a late answer
        try:
            self._connection, answer = end.result(self._timeout_s)
        except (dist.DistError, OSError) as error:  # a TimeoutError is an OSError
            reason = str(error).partition("\n")[0] or f"no answer within {self._timeout_s:g} s"
            raise StoreUnavailable(f"the store at {'{}:{}'.format(*self._place)} does not answer: {reason}") from error
        return answer

    def close(self) -> None:
        self._connection = None


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
        self._url, self._prefix = url, prefix

    def get(self, key: str) -> bytes | None:
        values = self._ask("get", self._prefix + key)
        return values[0] if values else None

    def set(self, key: str, value: bytes) -> None:
        check_values(value=value)
        self._ask("put", self._prefix + key, value)

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        check_values(desired=desired, expected=expected)
        name = self._prefix + key
        if expected is None:
            is_written = self._ask("create", name, desired)
        else:
            is_written = self._ask("replace", name, expected, desired)
        return desired if is_written else self.get(key)

    def delete_all(self) -> None:
        """Remove every key with this store's prefix."""
        if not self._prefix:
            raise ValueError("prefix is empty; it must not be, or delete_all would delete all keys of the server")
        self._ask("delete_prefix", self._prefix)

    def _ask(self, request: str, *arguments: Any) -> Any:
        from etcd3gw.exceptions import Etcd3Exception
        from requests import RequestException

        try:
            return getattr(self._client, request)(*arguments)
        except (Etcd3Exception, RequestException, OSError) as error:
            raise StoreUnavailable(f"the store at {self._url} does not answer: {error}") from error

    def close(self) -> None:
        self._client.session.close()
