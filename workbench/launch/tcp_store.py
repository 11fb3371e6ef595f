"""Sockets that listen, and torch's TCPStore on one of them."""

import socket

import torch.distributed as dist

__all__ = ["listening_socket", "serve_tcp_store"]

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
