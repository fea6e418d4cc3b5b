"""The routes of the endpoints: they read requests, run the model and write answers.

Owns HTTP: tokens, bodies, statuses, server-sent events, and that the work ends when the client leaves. The dialects own
what is in the bodies. Starlette is the extra `[server]`.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import msgspec

from pilothouse.errors import UsageError
from pilothouse.events import TextDelta, TextRetracted, ThinkingDelta
from pilothouse.integrations.endpoints import anthropic_messages, openai_chat, openai_responses
from pilothouse.integrations.endpoints.exchange import (
    AnswerWriter,
    Dialect,
    EndpointAnswer,
    EndpointError,
    EndpointRequest,
    JsonBody,
    StopTextFilter,
    make_endpoint_error,
    make_hidden_error,
)
from pilothouse.integrations.endpoints.models import EndpointModels
from pilothouse.language_model import AnswerFailed, AnswerFinished
from pilothouse.messages.json_lines import encode_json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
PING_SECONDS: Final = 15.0
MAX_KEPT_ANSWERS: Final = 1000
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
_IGNORED_HEADER: Final = b"x-pilothouse-ignored"

log = logging.getLogger("pilothouse.endpoints")


def openai_routes(models: EndpointModels, *, token: str | None) -> list[Route]:
    """Make the routes of OpenAI's protocols: chat completions, responses, models.

    Args:
        models: the models that they offer.
        token: what clients send as their API key. None: a layer before this checks who may use them.

    Returns:
        Routes below `/v1` for a Starlette or FastAPI application.

    Raises:
        UsageError: the token is empty, or the extra is not installed.

    Example:
        >>> from pilothouse.integrations.endpoints import EndpointModels, openai_routes
        >>> models = EndpointModels(aliases={"gpt-4o": "sonnet"})
        >>> [route.path for route in openai_routes(models, token="a-long-secret")][0]
        '/v1/chat/completions'
    """
    answers = KeptAnswers()
    routes = EndpointRoutes(models, token, openai_chat.DIALECT, answers)
    responses = EndpointRoutes(models, token, openai_responses.DIALECT, answers)
    return [
        routes.make("/v1/chat/completions", "POST", routes.answer),
        responses.make("/v1/responses", "POST", responses.answer),
        responses.make("/v1/responses/{id}", "GET", responses.get_answer),
        responses.make("/v1/responses/{id}", "DELETE", responses.delete_answer),
        *routes.make_shared_routes(),
    ]


def anthropic_routes(models: EndpointModels, *, token: str | None) -> list[Route]:
    """Make the routes of Anthropic's protocol: messages, the count of tokens, models.

    Arguments and errors are those of `openai_routes`; the routes for models serve clients of both.
    """
    routes = EndpointRoutes(models, token, anthropic_messages.DIALECT, KeptAnswers())
    return [
        routes.make("/v1/messages", "POST", routes.answer),
        routes.make("/v1/messages/count_tokens", "POST", routes.count_tokens),
        *routes.make_shared_routes(),
    ]


class KeptAnswer(msgspec.Struct, frozen=True):
    """An answer that later requests may continue: `messages` is the conversation up to its end, only of pure models."""

    body: JsonBody
    messages: list[Any]
    session_id: str | None
    size: int


class KeptAnswers:
    """The last answers, in memory; the oldest are dropped."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, KeptAnswer] = OrderedDict()
        self._size = 0

    def add(self, answer: KeptAnswer) -> None:
        """Keep an answer."""
        self._answers[answer.body["id"]] = answer
        self._size += answer.size
        while len(self._answers) > MAX_KEPT_ANSWERS or self._size > MAX_KEPT_BYTES:
            self._size -= self._answers.popitem(last=False)[1].size

    def get(self, key: str) -> KeptAnswer:
        """Return an answer; raises EndpointError (404) if it was never kept, or is no longer."""
        if key in self._answers:
            return self._answers[key]
        text = f"there is no response {key!r}; the last {MAX_KEPT_ANSWERS:,} are kept until the server ends"
        raise EndpointError(404, "not_found_error", text, code="previous_response_not_found")

    def remove(self, key: str) -> None:
        """Forget an answer. Raises as `get` does."""
        self._size -= self.get(key).size
        del self._answers[key]


class EndpointRoutes:
    """The handlers of one dialect; without a token they check none."""

    def __init__(self, models: EndpointModels, token: str | None, dialect: Dialect, answers: KeptAnswers) -> None:
        try:
            import starlette.routing as _  # noqa: F401
        except ImportError as error:
            raise UsageError("endpoints need an extra: pip install 'pilothouse[server]'") from error
        if token is not None and not token:
            raise UsageError("the token of an endpoint is empty; None is for a server that checks tokens itself")
        self._models = models
        self._token = token
        self._dialect = dialect
        self._answers = answers

    def make(self, path: str, method: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
        """Make the route of a handler; its errors are in the form of the dialect, those of other methods too.

        Without a method, the route refuses what no other route of the application takes.
        """
        from starlette.requests import ClientDisconnect, Request
        from starlette.responses import Response
        from starlette.routing import Route

        async def endpoint(request: Request) -> Response:
            try:
                self._check_token(request)
                return await handler(request)
            except EndpointError as error:
                return self._make_error_response(error)
            except UsageError as error:
                return self._make_error_response(cast("EndpointError", make_endpoint_error(error)))
            except ClientDisconnect:  # in the middle of its request
                return Response(status_code=400)
            except Exception:
                log.exception("a request of an endpoint could not be read")
                return self._make_error_response(make_hidden_error())

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["method"] in allowed:
                await route.app(scope, receive, send)
            else:
                await self._refuse(Request(scope), allowed)(scope, receive, send)

        route = Route(path, endpoint, methods=[method])
        allowed = sorted(route.methods or ()) if method else []
        route.handle = handle  # Starlette's own answers in plain text
        return route

    def make_shared_routes(self) -> list[Route]:
        """Make the routes that list the models, in a form that clients of both vendors read, and refuse other paths."""
        return [
            self.make("/v1/models", "GET", self.list_models),
            self.make("/v1/models/{id:path}", "GET", self.get_model),
            self.make("/v1/{path:path}", "", self.list_models),
        ]

    def _refuse(self, request: Request, allowed: Collection[str]) -> Response:
        text = f"there is no {request.method} {request.url.path} here"
        if request.url.path.startswith("/v1/v1/"):
            text += "; the base URL of this client has no /v1"
        error = EndpointError(404, "not_found_error", text, code="unknown_url")
        if allowed:
            error = EndpointError(405, "invalid_request_error", text, code="method_not_supported")
        is_anthropic = "anthropic-version" in request.headers  # each list of routes refuses for both vendors
        response = self._make_error_response(error, anthropic_messages.DIALECT if is_anthropic else self._dialect)
        if allowed:
            response.headers["allow"] = ", ".join(allowed)
        return response

    async def answer(self, request: Request) -> Response:
        """Answer a request, as a stream if it asks for one."""
        asked = self._dialect.read(await _read_body(request))
        kept = None if asked.previous is None else self._answers.get(asked.previous)
        messages = asked.messages
        if kept is not None:
            if (kept.session_id is not None) != self._models.is_agent(asked.model):
                text = "previous_response_id: an agent and a pure model cannot continue each other's answers"
                raise EndpointError(400, "invalid_request_error", text)
            messages = [*kept.messages, *asked.messages]
            asked = msgspec.structs.replace(asked, messages=messages)
        run = AnswerRun(self._models, asked, self._dialect, None if kept is None else kept.session_id)
        run.open()
        if self._dialect.keeps_answers and asked.body.get("store") is not False:
            run.on_finished = lambda body, answer: self._keep(asked, messages, body, answer)
        return cast("Response", run)

    async def get_answer(self, request: Request) -> Response:
        """Return a kept answer."""
        return _make_response(self._answers.get(request.path_params["id"]).body)

    async def delete_answer(self, request: Request) -> Response:
        """Forget a kept answer."""
        key = request.path_params["id"]
        self._answers.remove(key)
        return _make_response({"id": key, "object": "response", "deleted": True})

    async def count_tokens(self, request: Request) -> Response:
        """Estimate the tokens of a request."""
        body = await _read_body(request)
        self._models.check(self._dialect.read({"max_tokens": 1, **body}).model)
        return _make_response({"input_tokens": anthropic_messages.estimate_tokens(body)})

    async def list_models(self, request: Request) -> Response:
        """List the models."""
        found = [_describe_model(name) for name in self._models.names]
        ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"], "has_more": False}
        return _make_response({"object": "list", "data": found, **ends})

    async def get_model(self, request: Request) -> Response:
        """Describe a model."""
        name = request.path_params["id"]
        self._models.check(name)
        return _make_response(_describe_model(name))

    def _check_token(self, request: Request) -> None:
        if self._token is None:
            return
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if not hmac.compare_digest(_digest(given), _digest(self._token)):
            raise EndpointError(401, "authentication_error", "the API key is not valid here", code="invalid_api_key")

    def _make_error_response(self, error: EndpointError, dialect: Dialect | None = None) -> Response:
        body = (dialect or self._dialect).make_error_body(error)
        return _make_response(body, error.status, dict(_list_error_headers(error)))

    def _keep(self, asked: EndpointRequest, messages: list[Any], body: JsonBody, answer: EndpointAnswer) -> None:
        if self._models.is_agent(asked.model):
            self._answers.add(KeptAnswer(body, [], answer.result.response.session_id, len(encode_json(body))))
            return
        said = [*messages, *openai_responses.make_history(answer)]
        # Instructions hold for one response, so the next one does not have them.
        kept = [message for message in said if not openai_responses.is_instructions(message)]
        self._answers.add(KeptAnswer(body, kept, None, len(encode_json([body, kept]))))


class AnswerRun:
    """One answer, as an ASGI response; it ends its work when the client leaves.

    At its end `on_finished` is called with the body and the whole answer.
    """

    def __init__(self, models: EndpointModels, request: EndpointRequest, dialect: Dialect, resume: str | None) -> None:
        self.on_finished: Callable[[JsonBody, EndpointAnswer], None] | None = None
        self._models = models
        self._request = request
        self._dialect = dialect
        self._resume = resume
        self._writer: AnswerWriter = dialect.make_writer(request)
        self._stops = StopTextFilter(request.stop)
        self._is_started = False
        self._has_text = False
        self._sent_at = 0.0

    def open(self) -> None:
        """Check the request, so that one that cannot be answered is refused before anything is started."""
        self._stream = self._models.start(self._request, resume=self._resume)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, until the client leaves."""
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            if self._request.is_stream:
                tasks.start_soon(self._ping, send)
            await self._respond(send)
            tasks.cancel_scope.cancel()

    async def _respond(self, send: Send) -> None:
        try:
            async with self._stream as stream, self._models.limiter:
                async for event in stream:
                    match event:
                        case TextDelta():
                            await self._send_text(self._stops.feed(event.text), send)
                        case ThinkingDelta() if self._request.is_stream and self._request.wants_thinking:
                            await self._send_events(self._writer.write_thinking(event.text), send)
                        case TextRetracted(text=text) if text and self._request.is_stream:
                            raise EndpointError(500, "api_error", "the answer broke off; send the request again")
                        case AnswerFailed():
                            raise event.error
                        case AnswerFinished():
                            await self._finish(event, send)
                        case _:
                            pass
        except Exception as error:  # noqa: BLE001 - every failure is an answer in the form of the dialect
            await self._fail(error, send)

    async def _send_text(self, text: str, send: Send) -> None:
        if text and self._request.is_stream:
            self._has_text = True
            await self._send_events(self._writer.write_text(text), send)

    async def _finish(self, event: AnswerFinished, send: Send) -> None:
        result = event.result
        if self._request.is_stream:
            await self._send_text(self._stops.end(), send)
            text = result.text
            if self._stops.found is not None:
                text = text[: text.find(self._stops.found)]
        else:
            whole = StopTextFilter(self._request.stop)
            text = whole.feed(result.text) + whole.end()
            self._stops = whole
        calls = () if self._stops.found is not None else result.pending_calls
        if self._request.one_call:
            calls = calls[:1]
        answer = EndpointAnswer(result=result, text=text, calls=tuple(calls), stopped_by=self._stops.found)
        body = self._writer.make_body(answer)
        if self.on_finished is not None:
            self.on_finished(body, answer)
        if self._request.is_stream:
            await self._send_events(self._writer.finish(answer), send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await self._send_body(200, body, [], send)

    async def _fail(self, error: Exception, send: Send) -> None:
        failure = make_endpoint_error(error)
        if failure is None:
            log.error("an endpoint could not answer", exc_info=error)
            failure = make_hidden_error()
        if self._is_started:
            await self._send_events(self._writer.fail(failure), send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            headers = [(name.encode(), value.encode()) for name, value in _list_error_headers(failure)]
            await self._send_body(failure.status, self._dialect.make_error_body(failure), headers, send)

    async def _send_events(self, events: Iterable[bytes], send: Send) -> None:
        first = [] if self._is_started else [*self._writer.start()]
        data = b"".join([*first, *events])
        if not self._is_started:
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), *self._ignored_header]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            self._is_started = True
        self._sent_at = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _send_body(self, status: int, body: JsonBody, headers: Sequence[tuple[bytes, bytes]], send: Send) -> None:
        data = encode_json(body)
        size = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        head = [*size, *headers, *(self._ignored_header if status < 400 else [])]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": data, "more_body": False})
        self._is_started = True

    async def _ping(self, send: Send) -> None:
        while True:
            await anyio.sleep(PING_SECONDS)
            if self._is_started and time.monotonic() - self._sent_at >= PING_SECONDS:
                await send({"type": "http.response.body", "body": self._dialect.ping, "more_body": True})

    @property
    def _ignored_header(self) -> list[tuple[bytes, bytes]]:
        names = ", ".join(self._request.ignored)
        return [(_IGNORED_HEADER, names.encode())] if names else []


def _make_response(body: JsonBody, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import Response

    return Response(encode_json(body), status, headers, "application/json")


async def _read_body(request: Request) -> JsonBody:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise EndpointError(413, "request_too_large", f"the request is longer than {MAX_BODY_BYTES:,} bytes")
        parts.append(part)
    try:
        body = msgspec.json.decode(b"".join(parts))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EndpointError(400, "invalid_request_error", f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise EndpointError(400, "invalid_request_error", "the body: expected an object")
    return cast("JsonBody", body)


def _describe_model(name: str) -> JsonBody:
    times = {"created": 0, "created_at": "1970-01-01T00:00:00Z"}  # not known
    return {"id": name, "object": "model", "type": "model", "owned_by": "anthropic", "display_name": name, **times}


def _list_error_headers(error: EndpointError) -> list[tuple[str, str]]:
    found = [] if error.retry_after is None else [("retry-after", str(error.retry_after))]
    return [*found, ("www-authenticate", "Bearer")] if error.status == 401 else found


def _digest(text: str) -> bytes:
    # Digests have one length, so that the comparison does not reveal that of the token.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
