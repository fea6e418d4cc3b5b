"""`--transport ws://…`: a query of the command on a host."""

from __future__ import annotations

import pytest

from pilothouse_cli.arguments import parse
from pilothouse_cli.flags import AskRequest
from pilothouse_remote import WebSocketTransport


@pytest.mark.requirement("E84")
@pytest.mark.parametrize("scheme", ["wss", "https"])
def test_a_host_is_named_by_its_address(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTHOUSE_HOST_TOKEN", "a-token-123456")
    asked = parse(["ask", "--transport", f"{scheme}://host.example:8750", "Hi"])
    assert isinstance(asked, AskRequest)
    make = asked.settings["transport"]
    first, second = make(), make()
    assert isinstance(first, WebSocketTransport)
    assert (first.address.url, first._token) == ("wss://host.example:8750/v1/wire", "a-token-123456")
    assert second is not first
    assert "a-token" not in repr(asked)


@pytest.mark.parametrize("wrong", ["ws://", "ws://user:secret@host", "wss://host?token=secret"])
def test_an_address_that_is_none_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["ask", "--transport", wrong, "Hi"])
    error = capsys.readouterr().err
    assert "address of a host" in error
    assert "secret" not in error
