"""The routes of the endpoints: they read requests, run the model and write answers.

Owns HTTP: tokens, bodies, statuses, server-sent events, and that the work ends when the client leaves. The dialects own
what is in the bodies.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, request_response
from starlette.types import Receive, Scope, Send

from pilothouse.errors import UsageError
from pilothouse.events import TextDelta, TextRetracted, ThinkingDelta
from pilothouse.support import encode_json
from pilothouse_access.guard import AccessGuard, AccessRules, GetOwner, RefusedRequestError, find_application_access
from pilothouse_access.owners import Access, Owner
from pilothouse_access.request_ids import REQUEST_ID_KEY, RequestIds
from pilothouse_models import AnswerFailed, AnswerFinished
from pilothouse_models.endpoints import anthropic_messages, openai_chat, openai_responses
from pilothouse_models.endpoints.exchange import (
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
from pilothouse_models.endpoints.fields import encode_names
from pilothouse_models.endpoints.models import EndpointModels

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
HEAD_SECONDS: Final = 2.0
"""A stream without text gets its head after this time. Until then, a failure still has its own status."""
PING_SECONDS: Final = 15.0
"""A stream is never silent for longer."""
MAX_KEPT_ANSWERS: Final = 1000
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
_IGNORED_HEADER: Final = b"x-pilothouse-ignored"

log = logging.getLogger("pilothouse.endpoints")


def openai_routes(
    models: EndpointModels,
    *,
    token: str | None,
    get_owner: GetOwner | None = None,
    names: Sequence[str] = (),
    origins: Sequence[str] = (),
) -> list[Route]:
    """Make the routes of OpenAI's protocols: chat completions, responses, models.

    The routes refuse requests (403) under a host name that they do not know, and those of pages of other origins.

    Args:
        models: the models that they offer.
        token: what clients send as their API key. None: a layer before this checks who may use them.
        get_owner: `f(request)` returns the name of the user who asks, sync or async; stored responses of others do not
            exist for this user. Default: nobody tells users apart; behind `make_app` of a host, its tokens do.
        names: host names of the server, besides "localhost"; addresses are always accepted.
        origins: origins of pages on other servers that may use the routes, such as "https://app.example.com".

    Returns:
        Routes below `/v1` for a Starlette or FastAPI application.

    Raises:
        UsageError: the token is empty, or a name or an origin has a form that no browser sends.

    Example:
        >>> from pilothouse_models.endpoints import EndpointModels, openai_routes
        >>> models = EndpointModels(aliases={"gpt-4o": "sonnet"})
        >>> [route.path for route in openai_routes(models, token="a-long-secret")][0]
        '/v1/chat/completions'
    """
    rules, answers = _make_rules(token, names, origins), KeptAnswers()
    routes = EndpointRoutes(models, rules, get_owner, openai_chat.DIALECT, answers)
    responses = EndpointRoutes(models, rules, get_owner, openai_responses.DIALECT, answers)
    return [
        routes.make("/v1/chat/completions", "POST", routes.answer),
        responses.make("/v1/responses", "POST", responses.answer),
        responses.make("/v1/responses/{id}", "GET", responses.get_answer),
        responses.make("/v1/responses/{id}", "DELETE", responses.delete_answer),
        responses.make("/v1/responses/{id}/input_items", "GET", responses.list_input_items),
        *routes.make_shared_routes(),
    ]


def anthropic_routes(
    models: EndpointModels,
    *,
    token: str | None,
    get_owner: GetOwner | None = None,
    names: Sequence[str] = (),
    origins: Sequence[str] = (),
) -> list[Route]:
    """Make the routes of Anthropic's protocol: messages, the count of tokens, models.

    Arguments and errors are those of `openai_routes`; the routes for models serve clients of both.
    """
    rules = _make_rules(token, names, origins)
    routes = EndpointRoutes(models, rules, get_owner, anthropic_messages.DIALECT, KeptAnswers())
    return [
        routes.make("/v1/messages", "POST", routes.answer),
        routes.make("/v1/messages/count_tokens", "POST", routes.count_tokens),
        *routes.make_shared_routes(),
    ]


def _make_rules(token: str | None, names: Sequence[str], origins: Sequence[str]) -> AccessRules:
    if token is not None and not token:
        raise UsageError("the token of an endpoint is empty; None is for a server that checks tokens itself")
    return AccessRules(token=token, names=names, origins=origins)


class KeptAnswer(msgspec.Struct, frozen=True):
    """An answer that later requests may continue.

    Args:
        owner: who asked for it.
        body: the answer.
        input: the items of its request.
        messages: the conversation up to its end; only of pure models.
        session_id: the session to continue; only of agents.
        size: bytes that all of this takes.
    """

    owner: Owner
    body: JsonBody
    input: list[JsonBody]
    messages: list[Any]
    session_id: str | None
    size: int


class KeptAnswers:
    """The last answers, in memory. While there are too many, the oldest of the owner with the most is dropped."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, KeptAnswer] = OrderedDict()
        self._counts = Counter[Owner]()
        self._sizes = Counter[Owner]()

    def add(self, answer: KeptAnswer) -> None:
        """Keep an answer."""
        self._answers[answer.body["id"]] = answer
        self._counts[answer.owner] += 1
        self._sizes[answer.owner] += answer.size
        while self._counts.total() > MAX_KEPT_ANSWERS:
            self._drop_oldest(self._counts.most_common(1)[0][0])
        while self._sizes.total() > MAX_KEPT_BYTES:
            self._drop_oldest(self._sizes.most_common(1)[0][0])

    def get(self, key: str, owner: Owner) -> KeptAnswer:
        """Return an answer; raises EndpointError (404) if the owner has none with this id, or not any more."""
        answer = self._answers.get(key)
        if answer is not None and owner.may_use(answer.owner):
            return answer
        text = f"there is no response {key!r}; the last {MAX_KEPT_ANSWERS:,} are kept until the server ends"
        raise EndpointError(404, "not_found_error", text, code="previous_response_not_found")

    def remove(self, key: str, owner: Owner) -> None:
        """Forget an answer. Raises as `get` does."""
        self.get(key, owner)
        self._drop(key)

    def _drop_oldest(self, owner: Owner) -> None:
        self._drop(next(key for key, answer in self._answers.items() if answer.owner == owner))

    def _drop(self, key: str) -> None:
        answer = self._answers.pop(key)
        self._counts[answer.owner] -= 1
        self._sizes[answer.owner] -= answer.size


class EndpointRoutes:
    """The handlers of one dialect."""

    def __init__(
        self,
        models: EndpointModels,
        rules: AccessRules,
        get_owner: GetOwner | None,
        dialect: Dialect,
        answers: KeptAnswers,
    ) -> None:
        self._models = models
        self._rules = rules
        self._get_owner = get_owner
        self._dialect = dialect
        self._answers = answers

    def make(self, path: str, method: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
        """Make the route of a handler; its errors are in the form of the dialect, those of other methods too.

        Without a method, the route refuses what no other route of the application takes.
        """

        async def endpoint(request: Request) -> Response:
            try:
                return await handler(request)
            except RefusedRequestError:
                raise  # the guard responds
            except EndpointError as error:
                return self._make_error_response(error)
            except UsageError as error:
                return self._make_error_response(cast("EndpointError", make_endpoint_error(error)))
            except ClientDisconnect:  # in the middle of its request
                return Response(status_code=400)
            except Exception:
                log.exception("an endpoint could not read the request %s", request.scope[REQUEST_ID_KEY])
                return self._make_error_response(make_hidden_error())

        async def refuse(request: Request) -> Response:
            return self._refuse(request, allowed)

        # The guard is the endpoint itself, so that it stays where a framework makes another route of this one.
        guarded = RequestIds(AccessGuard(request_response(endpoint), self._rules))
        guarded_refusal = RequestIds(AccessGuard(request_response(refuse), self._rules))

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            await (guarded if scope["method"] in allowed else guarded_refusal)(scope, receive, send)

        route = Route(path, guarded, methods=[method])
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
        access = await find_application_access(self._get_owner, request)
        asked = self._dialect.read(await _read_body(request))
        kept = None if asked.previous is None else self._answers.get(asked.previous, access.owner)
        messages = asked.messages
        if kept is not None:
            if (kept.session_id is not None) != self._models.is_agent(asked.model):
                text = "previous_response_id: an agent and a pure model cannot continue each other's answers"
                raise EndpointError(400, "invalid_request_error", text)
            messages = [*kept.messages, *asked.messages]
            asked = msgspec.structs.replace(asked, messages=messages)
        run = AnswerRun(self._models, asked, self._dialect, access, None if kept is None else kept.session_id)
        run.open()
        if self._dialect.keeps_answers and asked.body.get("store") is not False:
            run.on_finished = lambda body, answer: self._keep(access.owner, asked, messages, body, answer)
        return cast("Response", run)

    async def get_answer(self, request: Request) -> Response:
        """Return a kept answer."""
        access = await find_application_access(self._get_owner, request)
        return _make_response(self._answers.get(request.path_params["id"], access.owner).body)

    async def delete_answer(self, request: Request) -> Response:
        """Forget a kept answer."""
        access = await find_application_access(self._get_owner, request)
        key = request.path_params["id"]
        self._answers.remove(key, access.owner)
        return _make_response({"id": key, "object": "response", "deleted": True})

    async def list_input_items(self, request: Request) -> Response:
        """List the items of the request of a kept answer."""
        access = await find_application_access(self._get_owner, request)
        items = self._answers.get(request.path_params["id"], access.owner).input
        return _make_response(openai_responses.list_items(items, request.query_params))

    async def count_tokens(self, request: Request) -> Response:
        """Estimate the tokens of a request."""
        body = await _read_body(request)
        self._models.check(self._dialect.read({"max_tokens": 1, **body}).model)
        return _make_response({"input_tokens": anthropic_messages.estimate_tokens(body)})

    async def list_models(self, request: Request) -> Response:
        """List the models."""
        found = [_describe_model(name, self._models.offered_since) for name in self._models.names]
        ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"], "has_more": False}
        return _make_response({"object": "list", "data": found, **ends})

    async def get_model(self, request: Request) -> Response:
        """Describe a model."""
        name = request.path_params["id"]
        self._models.check(name)
        return _make_response(_describe_model(name, self._models.offered_since))

    def _make_error_response(self, error: EndpointError, dialect: Dialect | None = None) -> Response:
        body = (dialect or self._dialect).make_error_body(error)
        return _make_response(body, error.status, dict(_list_error_headers(error)))

    def _keep(
        self, owner: Owner, asked: EndpointRequest, messages: list[Any], body: JsonBody, answer: EndpointAnswer
    ) -> None:
        items = openai_responses.make_input_items(asked.body)
        if self._models.is_agent(asked.model):
            size = len(encode_json([body, items]))
            self._answers.add(KeptAnswer(owner, body, items, [], answer.result.response.session_id, size))
            return
        said = [*messages, *openai_responses.make_history(answer)]
        # Instructions hold for one response, so the next one does not have them.
        kept = [message for message in said if not openai_responses.is_instructions(message)]
        self._answers.add(KeptAnswer(owner, body, items, kept, None, len(encode_json([body, items, kept]))))


class AnswerRun:
    """One answer, as an ASGI response; it ends its work when the client leaves.

    At its end `on_finished` is called with the body and the whole answer.
    """

    def __init__(
        self, models: EndpointModels, request: EndpointRequest, dialect: Dialect, access: Access, resume: str | None
    ) -> None:
        self.on_finished: Callable[[JsonBody, EndpointAnswer], None] | None = None
        self._models = models
        self._request = request
        self._dialect = dialect
        self._access = access
        self._resume = resume
        self._writer: AnswerWriter = dialect.make_writer(request)
        self._stops = StopTextFilter(request.stop)
        self._is_started = False
        self._is_over = False
        self._sent_at = -math.inf
        self._sending = anyio.Lock()
        self._request_id = ""

    def open(self) -> None:
        """Check the request, so that one that cannot be answered is refused before anything is started."""
        self._stream = self._models.start(self._request, resume=self._resume)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, until the client leaves."""
        self._request_id = scope[REQUEST_ID_KEY]
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            if self._request.is_stream:
                tasks.start_soon(self._keep_open, send)
            await self._respond(send)
            tasks.cancel_scope.cancel()

    async def _respond(self, send: Send) -> None:
        try:
            async with self._stream as stream, self._models.limiter.hold(self._access):
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
            await self._send_events(self._writer.finish(answer), send, is_last=True)
        else:
            await self._send_body(200, body, [], send)

    async def _fail(self, error: Exception, send: Send) -> None:
        failure = make_endpoint_error(error)
        if failure is None:
            log.error("an endpoint could not answer the request %s", self._request_id, exc_info=error)
            failure = make_hidden_error()
        async with self._sending:
            is_started = self._is_started
            if not is_started:
                headers = [(name.encode(), value.encode()) for name, value in _list_error_headers(failure)]
                await self._send_body(failure.status, self._dialect.make_error_body(failure), headers, send)
        if is_started:
            await self._send_events(self._writer.fail(failure), send, is_last=True)

    async def _send_events(self, events: Iterable[bytes], send: Send, *, is_last: bool = False) -> None:
        async with self._sending:
            if self._is_over:  # a ping, while the work is being ended
                return
            first = [] if self._is_started else [*self._writer.start()]
            data = b"".join([*first, *events])
            if not self._is_started:
                kinds = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
                head = [*kinds, *self._ignored_header]
                self._is_started = True
                await send({"type": "http.response.start", "status": 200, "headers": head})
            self._sent_at, self._is_over = time.monotonic(), is_last
            await send({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def _send_body(self, status: int, body: JsonBody, headers: Sequence[tuple[bytes, bytes]], send: Send) -> None:
        data = encode_json(body)
        size = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        head = [*size, *headers, *(self._ignored_header if status < 400 else [])]
        self._is_started = self._is_over = True
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": data, "more_body": False})

    async def _keep_open(self, send: Send) -> None:
        """Send pings into a silent stream, the first with its head: clients and proxies give up on a silent one."""
        await anyio.sleep(HEAD_SECONDS)
        while True:
            silence = time.monotonic() - self._sent_at
            if silence >= PING_SECONDS:
                await self._send_events((self._dialect.ping,), send)
                silence = 0
            await anyio.sleep(PING_SECONDS - silence)

    @property
    def _ignored_header(self) -> list[tuple[bytes, bytes]]:
        names = self._request.ignored
        return [(_IGNORED_HEADER, encode_names(names))] if names else []


def _make_response(body: JsonBody, status: int = 200, headers: dict[str, str] | None = None) -> Response:
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


def _describe_model(name: str, offered_since: int) -> JsonBody:
    begun = datetime.fromtimestamp(offered_since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    times = {"created": offered_since, "created_at": begun}
    return {"id": name, "object": "model", "type": "model", "owned_by": "anthropic", "display_name": name, **times}


def _list_error_headers(error: EndpointError) -> list[tuple[str, str]]:
    found = [] if error.retry_after is None else [("retry-after", str(error.retry_after))]
    return [*found, ("www-authenticate", "Bearer")] if error.status == 401 else found
