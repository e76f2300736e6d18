"""The actor of a server or of the scheduler."""

from __future__ import annotations

import socket
from typing import Any, Optional

import kvstore

from ._address import hold_port


class Server:
    """Serves one generation of a job after the other."""

    def __init__(self) -> None:
        self._held: Optional[socket.socket] = None

    def reserve(self) -> str:
        """The address at which the scheduler of the next generation will listen."""
        self._release()
        self._held, root = hold_port()
        return root

    def serve(self, options: dict[str, Any]) -> None:
        """Returns at the end of the generation."""
        with kvstore.create("dist_sync", **options) as member:
            # The scheduler listens from create() on.
            self._release()
            member.serve()

    def _release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None
