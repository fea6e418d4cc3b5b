"""Endpoints and official clients of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from endpoint_server import NONCE, Clients, Connect, EndpointServer, ToldTransports

from pilothouse_models.endpoints import EndpointModels


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Serves models that say what the arguments are, one for each request, and returns clients of them."""
    monkeypatch.setattr("pilothouse_models.stream.derive_nonce", lambda *_: NONCE)
    servers: list[EndpointServer] = []
    clients: list[Clients] = []

    def make(*requests: Any, **models: Any) -> Clients:
        told = ToldTransports(*requests)
        server = EndpointServer(EndpointModels(transport=told, **models))
        servers.append(server.__enter__())
        clients.append(Clients(server, told))
        return clients[-1]

    yield make
    for each in clients:
        each.close()
    for server in servers:
        server.__exit__()
