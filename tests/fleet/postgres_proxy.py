"""A wire to PostgreSQL that can be cut, also between a COMMIT and its answer. Knows nothing of pilothouse."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs, urlsplit

SOCKET = ".s.PGSQL.5432"


class Proxy:
    """Connections to a server through this process.

    Args:
        server: the socket of the server.
        path: the socket of the proxy.

    Attributes:
        is_down: whether new connections are refused.
        at_commit: asked at every COMMIT with its number, from 1: "before" cuts the wire before the server has it,
            "after" when the server has done it and nobody knows; else it passes.
    """

    def __init__(self, server: Path, path: Path) -> None:
        self.is_down = False
        self.at_commit: Callable[[int], str | None] = lambda _: None
        self.commits = 0
        self.cuts = 0
        self._server = server
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        """Cut all wires, now."""
        with self._lock:
            wires, self._open = self._open, []
            self.cuts += 1
        for wire in wires:
            _end(wire)

    def close(self) -> None:
        """End it all."""
        self.is_down = True
        _end(self._listener)
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                if self.is_down:
                    raise OSError("down")
                server.connect(str(self._server))
            except OSError:
                client.close()
                server.close()
                continue
            with self._lock:
                self._open += [client, server]
            for one in (self._forward, self._back):
                thread = threading.Thread(target=one, args=(client, server))
                self._threads.append(thread)
                thread.start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with client, suppress(OSError):
            while data := client.recv(65536):
                how = None
                if b"COMMIT\0" in data:
                    with self._lock:
                        self.commits += 1
                        how = self.at_commit(self.commits)
                if how is not None:
                    self.cuts += 1
                    _end(client)
                    if how == "before":
                        break
                server.sendall(data)
        _end(server, socket.SHUT_WR)

    def _back(self, client: socket.socket, server: socket.socket) -> None:
        with server:
            while True:
                try:
                    data = server.recv(65536)
                except OSError:
                    data = b""
                if not data:
                    break
                with suppress(OSError):  # it is read to the end all the same
                    client.sendall(data)
        _end(client)


def _end(wire: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    with suppress(OSError):
        wire.shutdown(how)


@contextmanager
def proxied(url: str) -> Generator[tuple[str, Proxy]]:
    """An address that leads to the server at `url`, and the proxy between."""
    [host] = parse_qs(urlsplit(url).query)["host"]
    with TemporaryDirectory(prefix="ph-") as name:
        proxy = Proxy(Path(host) / SOCKET, Path(name) / SOCKET)
        try:
            yield url.replace(host, name), proxy
        finally:
            proxy.close()
