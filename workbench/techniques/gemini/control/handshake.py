"""Connections between the hosts of a job, on which nothing is unpickled before both ends have proved a secret.

Each end sends a random number and an HMAC-SHA256 of both numbers, with the secret as key; the secret itself is never
sent. Later messages carry an HMAC with a key of that connection. Messages are not encrypted.
"""

import contextlib
import hmac
import os
import secrets
import selectors
import socket
import stat
import struct
import time
from collections.abc import Collection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

__all__ = ["AuthenticatedConnection", "accept_hosts", "connect_to_operator", "read_secret"]

SECRET_VARIABLE, FILE_VARIABLE = "WORKBENCH_SECRET", "WORKBENCH_SECRET_FILE"
LEAST_CHARACTERS = 32  # who sees a handshake can try out secrets, and must not come to an end
MOST_BYTES = 4096  # of a file
HOW = (
    f"make one secret, and give it to every host of the job: export {SECRET_VARIABLE}=$(openssl rand -hex 32), "
    f"or a file of mode 600 that {FILE_VARIABLE} names"
)
MAGIC = b"workben1"
NONCE_BYTES = MAC_BYTES = 32
HELLO = struct.Struct(f"<8sI{NONCE_BYTES}s")  # magic, rank, nonce of the host
PROOF_S = 10.0  # seconds in which a connection must prove that it knows the secret
MOST_UNPROVEN = 128  # connections at a time; the oldest one makes room


def read_secret() -> bytes:
    """Return the secret of this job, which its user gives by an environment variable or a file that nobody else reads.

    Raises:
        RuntimeError: where there is none; it says how to give one.
        ValueError: where it is too short, or the file is a link, of another user, or open to others.
    """
    if SECRET_VARIABLE in os.environ:
        return _checked_secret(SECRET_VARIABLE, os.environ[SECRET_VARIABLE])
    path = os.environ.get(FILE_VARIABLE) or str(Path.home() / ".config" / "workbench" / "secret")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise RuntimeError(f"{SECRET_VARIABLE} is not set, and there is no file {path}; {HOW}") from None
    except OSError as error:
        raise ValueError(f"the file {path} cannot be the secret ({error.strerror}); it must be no link") from error
    try:
        known = os.fstat(fd)
        if not stat.S_ISREG(known.st_mode) or known.st_uid != os.geteuid() or known.st_mode & 0o077:
            found = f"of user {known.st_uid} and mode {stat.S_IMODE(known.st_mode):o}"
            raise ValueError(f"the file {path} is {found}; it must be a plain file of your own, of mode 600")
        return _checked_secret(f"the secret in {path}", os.read(fd, MOST_BYTES).decode(errors="replace"))
    finally:
        os.close(fd)


def _checked_secret(name: str, text: str) -> bytes:
    text = text.strip()
    if len(text) < LEAST_CHARACTERS:
        raise ValueError(f"{name} has {len(text)} characters; it must have at least {LEAST_CHARACTERS}; {HOW}")
    return text.encode()


class AuthenticatedConnection:
    """A connection whose ends know one secret; a message that was changed, repeated or left out ends it."""

    def __init__(self, end: socket.socket, secret: bytes, handshake: bytes, is_operator: bool):
        end.setblocking(True)
        self._connection = Connection(end.detach())
        names = (b"from operator", b"from host")
        own, other = names if is_operator else names[::-1]
        self._own_key, self._other_key = (_mac(secret, name, handshake) for name in (own, other))
        self._num_sent = self._num_received = 0

    def send(self, value: Any) -> None:
        """Send a picklable object; OSError if the other end is gone."""
        data = cloudpickle.dumps(value)
        self._connection.send_bytes(_mac(self._own_key, b"%d" % self._num_sent, data) + data)
        self._num_sent += 1

    def receive(self) -> Any:
        """Wait for an object; EOFError or ConnectionError if the other end is gone or was not its sender."""
        message = self._connection.recv_bytes()
        data = message[MAC_BYTES:]
        if not hmac.compare_digest(_mac(self._other_key, b"%d" % self._num_received, data), message[:MAC_BYTES]):
            raise ConnectionAbortedError("a message between hosts was not sent by the other host")
        self._num_received += 1
        return cloudpickle.loads(data)

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Return whether there is something to receive, within so many seconds."""
        return self._connection.poll(timeout_s)

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close this end."""
        self._connection.close()


def connect_to_operator(
    address: tuple[str, int], secret: bytes, rank: int, limit_s: float = 60.0
) -> AuthenticatedConnection:
    """Connect a host, by its torchrun rank, to the operator; RuntimeError if what is there does not know the secret."""
    deadline_s = time.monotonic() + limit_s
    hello = HELLO.pack(MAGIC, rank, secrets.token_bytes(NONCE_BYTES))
    end = None
    try:
        end = socket.create_connection(address, limit_s)
        end.sendall(hello)
        answer = b""
        while len(answer) < NONCE_BYTES + MAC_BYTES:
            end.settimeout(max(0.001, deadline_s - time.monotonic()))
            if not (data := end.recv(NONCE_BYTES + MAC_BYTES - len(answer))):
                raise EOFError("it closed the connection")
            answer += data
        handshake = hello + answer[:NONCE_BYTES]
        if not hmac.compare_digest(_mac(secret, b"operator", handshake), answer[NONCE_BYTES:]):
            raise EOFError("its proof is wrong")
        end.sendall(_mac(secret, b"host", handshake))
    except (OSError, EOFError) as error:
        if end is not None:
            end.close()
        what = f"{address[0]}:{address[1]}, which the rendezvous store names as the operator"
        raise RuntimeError(f"{what}, did not prove that it knows this job's secret: {error or 'no answer'}") from error
    return AuthenticatedConnection(end, secret, handshake, is_operator=False)


def accept_hosts(
    listening: socket.socket, secret: bytes, ranks: Collection[int], limit_s: float
) -> tuple[list[AuthenticatedConnection], int]:
    """Wait for every host, and drop whoever else connects; return the connections by rank, and how many were dropped.

    TimeoutError names the hosts that did not come.
    """
    deadline_s = time.monotonic() + limit_s
    with contextlib.closing(_Admission(listening, secret, ranks)) as admission:
        while admission.missing:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                for connection in admission.proven.values():
                    connection.close()
                others = f"{admission.num_dropped} connections did not prove that they know the secret"
                raise TimeoutError(f"hosts {admission.missing} did not come within {limit_s:g} s; {others}")
            admission.listen(min(left_s, 1.0))
    return [admission.proven[rank] for rank in sorted(admission.proven)], admission.num_dropped


class _Admission:
    """The connections to a listening socket, of which each proves the secret in time or is dropped."""

    def __init__(self, listening: socket.socket, secret: bytes, ranks: Collection[int]):
        self.missing = sorted(ranks)
        self.proven: dict[int, AuthenticatedConnection] = {}
        self.num_dropped = 0
        self._listening, self._secret = listening, secret
        self._unproven: dict[socket.socket, _Candidate] = {}  # oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)
        listening.setblocking(False)

    def listen(self, timeout_s: float) -> None:
        """Wait until something is heard, for so many seconds at most."""
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listening:
                with contextlib.suppress(OSError):  # it is gone again
                    end, _ = self._listening.accept()
                    end.setblocking(False)
                    self._selector.register(end, selectors.EVENT_READ)
                    self._unproven[end] = _Candidate(end, self._secret)
            elif key.fileobj in self._unproven:
                self._hear(key.fileobj)
        for number, (end, candidate) in enumerate(reversed(list(self._unproven.items()))):
            if number >= MOST_UNPROVEN or time.monotonic() > candidate.deadline_s:
                self._drop(end)

    def _hear(self, end: socket.socket) -> None:
        try:
            rank = self._unproven[end].hear()
        except (OSError, EOFError):
            self._drop(end)
            return
        if rank in self.missing:
            self._selector.unregister(end)
            handshake = self._unproven.pop(end).handshake
            self.proven[rank] = AuthenticatedConnection(end, self._secret, handshake, is_operator=True)
            self.missing.remove(rank)
        elif rank is not None:
            self._drop(end)

    def _drop(self, end: socket.socket) -> None:
        self.num_dropped += 1
        self._selector.unregister(end)
        del self._unproven[end]
        end.close()

    def close(self) -> None:
        for end in list(self._unproven):
            self._drop(end)
        self._selector.close()


class _Candidate:
    """A connection that has not proved yet that it knows the secret."""

    def __init__(self, end: socket.socket, secret: bytes):
        self.deadline_s = time.monotonic() + PROOF_S
        self.handshake = b""  # the hello of the host and the nonce of the operator
        self._end, self._secret = end, secret
        self._heard = b""

    def hear(self) -> int | None:
        """Read on; return the rank that was proved, None if more must come, or raise EOFError."""
        wanted = MAC_BYTES if self.handshake else HELLO.size
        data = self._end.recv(wanted - len(self._heard))
        self._heard += data
        if not data or not (self.handshake or MAGIC.startswith(self._heard[: len(MAGIC)])):
            raise EOFError("it does not speak this protocol")
        if len(self._heard) < wanted:
            return None
        if self.handshake:
            if not hmac.compare_digest(_mac(self._secret, b"host", self.handshake), self._heard):
                raise EOFError("its proof is wrong")
            return HELLO.unpack(self.handshake[: HELLO.size])[1]
        nonce = secrets.token_bytes(NONCE_BYTES)
        self.handshake, self._heard = self._heard + nonce, b""
        self._end.send(nonce + _mac(self._secret, b"operator", self.handshake))
        return None


def _mac(key: bytes, purpose: bytes, data: bytes) -> bytes:
    return hmac.digest(key, purpose + b"\0" + data, "sha256")
