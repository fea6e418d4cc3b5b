"""How the host notes the end of a login that nobody completes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pilothouse.errors import ControlTimeout
from pilothouse_host.logins import LOGIN_SECONDS, SessionLogin

pytestmark = pytest.mark.anyio


class Begun:
    """A login at a server, whose process answers or does not."""

    url = "https://login.example"

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def wait(self, timeout: float) -> None:
        if self._error is not None:
            raise self._error
        await anyio.sleep(timeout)


def make_login(error: Exception | None = None) -> SessionLogin:
    begun: Any = Begun(error)
    return SessionLogin(begun, None)


@pytest.mark.virtual_time
async def test_nobody_logs_in() -> None:
    login = make_login()
    begin = anyio.current_time()
    await login.follow()
    assert anyio.current_time() - begin >= LOGIN_SECONDS
    assert (login.state, login.error) == ("failed", "nobody has logged in within 15 minutes: begin another login")


async def test_a_process_that_does_not_answer_is_not_called_late() -> None:
    login = make_login(ControlTimeout("no response within 60 s", subtype="mcp_status"))
    await login.follow()
    assert (login.state, login.error) == ("failed", "no response within 60 s")
