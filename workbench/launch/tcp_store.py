"""Sockets that listen, and torch's TCPStore on one of them."""

import socket

import torch.distributed as dist

__all__ = ["listening_socket", "serve_tcp_store"]

BACKLOG = 512  # connections that may wait to be accepted


def listening_socket(address: str, port: int = 0) -> socket.socket:
    """Return a listening socket; port 0 takes a free port, and a recently used port can be given again."""
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
    """Serve an empty store on a socket, which it takes over, as long as the returned object lives."""
    address, port = listening.getsockname()
    return dist.TCPStore(address, port, None, True, wait_for_workers=False, master_listen_fd=listening.detach())
