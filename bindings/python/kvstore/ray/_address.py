"""Addresses of schedulers."""

from __future__ import annotations

import socket

import ray


def hold_port() -> tuple[socket.socket, str]:
    """A free port of this node, which stays reserved until the scheduler listens at it.

    The socket is bound with SO_REUSEADDR and never listens, so the scheduler, which sets
    SO_REUSEADDR too, can bind the same port.
    """
    host = ray.util.get_node_ip_address()
    family = socket.getaddrinfo(host, None)[0][0]
    held = socket.socket(family)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    address = f"[{host}]" if ":" in host else host
    return held, f"{address}:{held.getsockname()[1]}"
