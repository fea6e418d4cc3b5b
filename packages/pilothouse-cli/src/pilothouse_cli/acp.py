"""`pilothouse acp`: the agent for editors, on this machine or in sessions of a host.

Owns where conversations of a host are. The protocol is in `pilothouse_doors.acp`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2
import msgspec

from pilothouse.client import Agent
from pilothouse.errors import UsageError
from pilothouse.messages import Message, from_dict
from pilothouse_cli.console import find_link
from pilothouse_cli.flags import AcpRequest
from pilothouse_cli.host_client import HostRefusedError, client_settings, explain_silence, read_body
from pilothouse_cli.screen import Screen
from pilothouse_remote import on_host
from pilothouse_remote.messages import DEFAULT_PATH
from pilothouse_transcripts import SessionInfo

MESSAGES_OF_A_RESPONSE = 5000


async def acp(request: AcpRequest, screen: Screen) -> int:
    """Serve the editor at standard input and output until it leaves; return the exit code."""
    try:
        from pilothouse_doors.acp.agent import serve_editor
    except ModuleNotFoundError:  # pilothouse-doors requires it below Python 3.15 only
        raise UsageError(
            "the agent for editors needs the package agent-client-protocol, which is not for this Python: "
            "use Python 3.14 or older"
        ) from None
    conversations = None if request.remote is None else HostConversations(request.remote)
    await serve_editor(Agent(**dict(request.settings)), conversations)
    return 0


class HostConversations:
    """The conversations on a host, which go on when the editor leaves. The methods block.

    Its `url` may be "": the console of this user that runs here.
    """

    outlives_editor = True

    def __init__(self, url: str) -> None:
        address, self._token = find_link(url, os.environ)
        parts = urlsplit(address)
        path = parts.path.rstrip("/").removesuffix(DEFAULT_PATH)
        self._wire = urlunsplit(parts._replace(path=f"{path}{DEFAULT_PATH}"))
        self._client = httpx2.Client(**client_settings(address, self._token))

    def _get(self, path: str) -> Any:
        return self._call("GET", path)

    def _call(self, method: str, path: str) -> Any:
        try:
            return read_body(self._client.request(method, path))
        except httpx2.TransportError as error:
            raise UsageError(f"--remote: {explain_silence(self._client.base_url, error)}") from None

    def list_newest(self, cwd: str | None, offset: int, limit: int) -> Sequence[SessionInfo]:
        """List conversations, the newest first; the directories of the editor are not those of the host."""
        found = self._get(f"/v1/transcripts?offset={offset}&limit={limit}")["transcripts"]
        return msgspec.convert(found, list[SessionInfo])

    def find(self, session_id: str) -> SessionInfo | None:
        """Return a conversation; None if there is none with this id."""
        try:
            found = self._get(f"/v1/transcripts/{session_id}?limit=1")["transcript"]
        except HostRefusedError as error:
            if error.code != "unknown_session":
                raise
            return None
        return msgspec.convert(found, SessionInfo)

    def read(self, session_id: str) -> Sequence[Message]:
        """Return the messages of a conversation."""
        found: list[Message] = []
        while True:
            path = f"/v1/transcripts/{session_id}?limit={MESSAGES_OF_A_RESPONSE}&offset={len(found)}"
            page = [from_dict(message) for message in self._get(path)["messages"]]
            found += page
            if len(page) < MESSAGES_OF_A_RESPONSE:
                return found

    def delete(self, session_id: str) -> None:
        """Delete a conversation, if there is one; raises UsageError if a session of the host uses it."""
        if self.find(session_id) is not None:
            self._call("DELETE", f"/v1/transcripts/{session_id}")

    def make_settings(self, session_id: str | None, cwd: str) -> Mapping[str, Any]:
        """Return options of a session: one that runs at the host is taken over."""
        live = None if session_id is None else self._find_live(session_id)
        settings: dict[str, Any] = {"transport": on_host(self._wire, token=self._token, session=live, take_over=True)}
        if session_id is not None and live is None:
            settings["resume"] = session_id
        return settings

    def _find_live(self, session_id: str) -> str | None:
        for session in self._get("/v1/sessions")["sessions"]:
            if session["conversation"] == session_id and session["ending"] is None and session["kind"] != "hosted":
                return session["id"]
        return None
