"""The blocking classes and functions, written by `python docs/reference.py` from the asynchronous ones.

What differs from them is in `wrappers.py`, and in the tables of `docs/blocking_classes.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from pilothouse import client
from pilothouse.client import controls, logins
from pilothouse.client.controls import (
    AccountInfo,
    AgentInfo,
    CommandInfo,
    ContextUsage,
    EffectiveSettings,
    FileContents,
    InterruptResult,
    McpCallResult,
    McpResourceContents,
    McpServersChange,
    McpServerStatus,
    ModelInfo,
    PermissionRules,
    PluginReloadResult,
    RegisteredHooks,
    RewindResult,
    SessionPlan,
    SessionUsage,
    SideAnswer,
    TaskOutput,
    WorkspaceDiff,
)
from pilothouse.client.costs import SessionCost
from pilothouse.client.logins import LoginAccount
from pilothouse.client.prompt import Prompt
from pilothouse.client.queries import LateWords, OnMessage, QueryState, SteerOutcome, SteerTime
from pilothouse.client.result import OutputT, QueryResult
from pilothouse.client.sessions import SessionState
from pilothouse.options import Options, Settings
from pilothouse.options.options import show_options
from pilothouse.permissions.approvals import AskView
from pilothouse.sync.wrappers import (
    AgentWrapper,
    GroupWrapper,
    MessageIterator,
    MessageSubscription,
    QueryWrapper,
    SessionWrapper,
    SteeringWrapper,
    call_on_loop,
    hand_to_caller,
    iterate_in_thread,
    replace_default,
    wrap_default,
)
from pilothouse.tracebacks import hide_arguments, user_class
from pilothouse.transports import Health

if TYPE_CHECKING:
    from pilothouse.events import QueryEvent
    from pilothouse.options import CliSettings, IsolationReport, OptionsBuilder


class McpLogin(GroupWrapper[logins.McpLogin]):
    """A login at an MCP server that has begun. Made by `session.mcp.authenticate`.

    It ends with `complete` or in the browser. A newer one for the same server replaces it: `complete` refuses then.
    """

    __slots__ = ()

    @property
    def server(self) -> str:
        """The name of the server."""
        return self._inner.server

    @property
    def url(self) -> str | None:
        """The page where the user agrees; None: nobody has to, and `wait` returns at once."""
        return self._inner.url

    @hide_arguments
    def complete(self, callback_url: str) -> McpServerStatus:
        """End the login with the address that the browser was sent on to, and connect the server.

        Needed where that browser cannot reach this machine: its page does not load then, and its address bar has the
        address. Also needed with a `redirect_uri`.

        Args:
            callback_url: the whole address, with its `code` and `state`. It is neither logged nor kept.

        Raises:
            LoginError: `.code` is "wrong_callback" if this is not an address for this login, which then still waits;
                "refused" if the user or the server refused, the login has ended, or the server does not connect.
            ControlTimeout: no answer within `control_timeout`.
        """
        return self._call(partial(self._inner.complete, callback_url))

    def wait(self, timeout: float = 300.0) -> McpServerStatus:
        """Wait until the user has logged in, in a browser on the machine of Claude Code, and the server is connected.

        Claude Code does not say which login it was: if a newer one has replaced this one, this waits for that.

        Args:
            timeout: seconds. Default 300.

        Raises:
            LoginError: `.code` is "refused": the user or the server refused.
            ControlTimeout: not in time; the login still waits.
        """
        return self._call(partial(self._inner.wait, timeout))


class ClaudeLogin(GroupWrapper[logins.ClaudeLogin]):
    """A login at Claude that has begun. Made by `session.login`.

    It ends with `complete` or in the browser; a newer one of the session replaces it.
    """

    __slots__ = ()

    @property
    def url(self) -> str:
        """The page where the user agrees, on any machine. It shows a code for `complete`."""
        return self._inner.url

    @property
    def local_url(self) -> str | None:
        """The same page for a browser on the machine of Claude Code, which needs no code: call `wait`."""
        return self._inner.local_url

    @hide_arguments
    def complete(self, code: str) -> AccountInfo:
        """End the login with the code that the page of `url` shows.

        Args:
            code: all of it, as in "…#…". It is neither logged nor kept.

        Returns:
            The account that Claude Code uses now: a key that it was given goes before the login.

        Raises:
            LoginError: `.code` is "wrong_callback" if this is not a code of this login, which then still waits; or
                "refused": begin another login.
            ControlTimeout: no answer within `control_timeout`.
        """
        return self._call(partial(self._inner.complete, code))

    def wait(self, timeout: float = 300.0) -> AccountInfo:
        """Wait until the user has logged in, in a browser on the machine of Claude Code (`local_url`).

        Call it when you show the address: the CLI does not say how an earlier login ended.

        Args:
            timeout: seconds. Default 300.

        Returns:
            The account that Claude Code uses now: a key that it was given goes before the login.

        Raises:
            LoginError: `.code` is "refused".
            ControlTimeout: not in time; the login still waits.
        """
        return self._call(partial(self._inner.wait, timeout))


class McpControls(GroupWrapper[controls.McpControls]):
    """The MCP servers of a session."""

    __slots__ = ()

    def status(self) -> list[McpServerStatus]:
        """Return every server, with its state and its tools. Only `raw` has the keys of its configuration."""
        return self._call(self._inner.status)

    def wait(self, servers: str | Iterable[str], timeout: float = 30.0) -> list[McpServerStatus]:
        """Wait until these servers are connected, before a prompt that needs their tools.

        Args:
            servers: their names.
            timeout: seconds to wait for all of them. Default 30.

        Returns:
            The servers, in the order of the names.

        Raises:
            ControlError: a server has failed, is disabled or needs a login; its `error` is in the message, and
                `.code` is its status.
            ControlTimeout: a server is not connected in time.
        """
        return self._call(partial(self._inner.wait, servers, timeout))

    def set_permission_mode(self, server: str, mode: Literal["default", "auto"] | None) -> str | None:
        """Change the permission mode for the tools of a server; None: that of the session. May return a warning."""
        return self._call(partial(self._inner.set_permission_mode, server, mode))

    def reconnect(self, server: str) -> None:
        """Connect a server again."""
        self._call(partial(self._inner.reconnect, server))

    def authenticate(self, server: str, *, redirect_uri: str | None = None) -> McpLogin:
        """Begin a login at a server whose `status` is "needs-auth": show the user its `url`, then `wait` or `complete`.

        Claude Code keeps the login in its configuration directory, for other sessions too.

        Args:
            server: its name. While it is still connecting, this waits for it.
            redirect_uri: where the browser is sent on to with the code: a page of your program, which calls `complete`
                with the whole address. Default: a port of the machine of Claude Code, where Claude Code listens.

        Raises:
            LoginError: `.code` is "unknown_server"; "no_login": the server is connected, or is a program; "refused":
                it offers no login, a policy forbids it; or a code of Claude Code, such as "mcp_redirect_uri_unusable".
        """
        return McpLogin(self._call(partial(self._inner.authenticate, server, redirect_uri=redirect_uri)), self._call)

    def clear_auth(self, server: str) -> None:
        """Forget the login at a server, and revoke it there if the server can; its status is "needs-auth" then.

        Raises:
            LoginError: `.code` is "unknown_server"; "no_login": the server is a program; or "refused".
        """
        self._call(partial(self._inner.clear_auth, server))

    def toggle(self, server: str, on: bool) -> None:
        """Switch a server on or off."""
        self._call(partial(self._inner.toggle, server, on))

    def set_servers(self, servers: Mapping[str, Any]) -> McpServersChange:
        """Replace the servers that were set before with these, by name; in the wire form of their configuration."""
        return self._call(partial(self._inner.set_servers, servers))

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        check_permissions: bool = False,
        soft_error_result: bool = False,
        result_not_for_model: bool = False,
        input_files: Mapping[str, str] | None = None,
        output_files: Mapping[str, str | tuple[str, str]] | None = None,
        expires_at: datetime | None = None,
    ) -> McpCallResult:
        """Call a tool directly, without the model.

        Tools of this process are not among those that can be called: call the function.

        Args:
            tool: its full name, such as "mcp__weather__now".
            arguments: its input. Default {}.
            timeout: seconds for the tool, from 1 to 600; with `check_permissions` also for hooks and for the answer of
                `can_use_tool`. Default: as long as `control_timeout`.
            check_permissions: decide about the call as about one of the model: with permission rules, the permission
                mode, hooks and `can_use_tool`. Default False: the call is yours, and nothing is asked.
            soft_error_result: return a failure of the tool as a result with `is_error`. Default False: raise it.
            result_not_for_model: return the content blocks as the server sent them: no picture is scaled, nothing is
                cut, and blocks beside structured content stay. Default False: as a model would get them.
            input_files: files of a cloud session that the tool reads: the path of each by a name, which `arguments`
                have as the value "{{in:NAME}}".
            output_files: files of a cloud session that the tool writes, as "{{out:NAME}}": the path by the name, or the
                path and the etag that the file must still have. Needs `expires_at`.
            expires_at: the call does not begin after this.

        Raises:
            McpToolError: the tool has failed; `.result` is what it returned. Of a CLI before 2.1.332 it is a plain
                `ControlError`, also with `soft_error_result`.
            ControlError: the call was not permitted ("The tool did not run: …"), there is no such tool or server, or a
                file could not be read or written; `.code` says which. With `check_permissions` also: the CLI is too
                old to check.
            ControlTimeout: the tool took longer than `timeout`.
            UsageError: `timeout` is not from 1 to 600.
        """
        return self._call(
            partial(
                self._inner.call,
                tool,
                arguments,
                timeout=timeout,
                check_permissions=check_permissions,
                soft_error_result=soft_error_result,
                result_not_for_model=result_not_for_model,
                input_files=input_files,
                output_files=output_files,
                expires_at=expires_at,
            )
        )

    def read_resource(self, server: str, uri: str) -> McpResourceContents:
        """Read a resource of a server. The CLI returns only those whose address begins with `ui://`."""
        return self._call(partial(self._inner.read_resource, server, uri))


class TaskControls(GroupWrapper[controls.TaskControls]):
    """The background work of a session."""

    __slots__ = ()

    def stop(self, task_id: str) -> None:
        """Stop a background task."""
        self._call(partial(self._inner.stop, task_id))

    def background(self, tool_use_id: str | None = None) -> None:
        """Move foreground work to the background: one tool call, or all."""
        self._call(partial(self._inner.background, tool_use_id))

    def output(self, task_id: str) -> TaskOutput:
        """Return the output of a background task so far."""
        return self._call(partial(self._inner.output, task_id))

    def cancel_queued(self, message_uuid: str) -> bool:
        """Remove a prompt from the queue of the CLI; False if it was not there."""
        return self._call(partial(self._inner.cancel_queued, message_uuid))

    def wait_idle(self) -> None:
        """Wait until no query, no background task, and no turn that one of them started is running."""
        self._call(self._inner.wait_idle)


class SettingsControls(GroupWrapper[controls.SettingsControls]):
    """The settings of the CLI in a session."""

    __slots__ = ()

    def get(self) -> EffectiveSettings:
        """Return the settings, merged and by source, and the errors in settings files."""
        return self._call(self._inner.get)

    def apply(self, settings: CliSettings | Mapping[str, Any]) -> None:
        """Merge settings into those of the command line, for this session.

        A key replaces what an earlier call said of it: a second call with `permissions` drops the rules of the first
        one. Rules that the session was started with stay.

        Raises:
            ControlError: the CLI cannot read them, and has applied nothing.
            SettingsError: the CLI has dropped a rule, a hook or a part of the sandbox, and applied the rest.
        """
        self._call(partial(self._inner.apply, settings))

    def add_repository(self, directory: str) -> None:
        """Make a directory below the working directory a project root too, with its CLAUDE.md, plugins and skills."""
        self._call(partial(self._inner.add_repository, directory))

    def update(self, settings: Mapping[str, Any], source: Literal["localSettings", "userSettings"]) -> None:
        """Write settings into a settings file. The CLI takes a few harmless keys only.

        Raises:
            ControlError: it does not take one of the keys, and has written nothing.
        """
        self._call(partial(self._inner.update, settings, source))

    def reload_plugins(self) -> PluginReloadResult:
        """Read plugins again."""
        return self._call(self._inner.reload_plugins)

    def reload_skills(self) -> list[CommandInfo]:
        """Read skills again; returns the skills there are now."""
        return self._call(self._inner.reload_skills)

    def output_styles(self) -> list[str]:
        """Read output styles again; returns those there are now."""
        return self._call(self._inner.output_styles)

    def permission_rules(self) -> PermissionRules:
        """Return the permission rules that apply."""
        return self._call(self._inner.permission_rules)

    def hooks(self) -> RegisteredHooks:
        """Return the registered hooks, including those of settings files."""
        return self._call(self._inner.hooks)


class InfoControls(GroupWrapper[controls.InfoControls]):
    """Information about a session."""

    __slots__ = ()

    def models(self) -> list[ModelInfo]:
        """Return the models that can be chosen."""
        return self._call(self._inner.models)

    def commands(self) -> list[CommandInfo]:
        """Return the slash commands, as of the handshake."""
        return self._inner.commands()

    def agents(self) -> list[AgentInfo]:
        """Return the sub-agents, as of the handshake."""
        return self._inner.agents()

    def account(self) -> AccountInfo:
        """Return the account that pays, as of the handshake."""
        return self._inner.account()

    def isolation_report(self) -> IsolationReport | None:
        """Report what the child had loaded at the beginning of its last turn, and what of it was not requested.

        None before the first turn, also after a new child has taken over. MCP servers that were set later, with
        `session.mcp.set_servers`, do not count as requested by the settings.
        """
        return self._inner.isolation_report()

    def usage(self) -> SessionUsage:
        """Return what the session has used, in numbers, and the limits of the account."""
        return self._call(self._inner.usage)

    def cost(self) -> str:
        """Return what the session has cost, as the CLI shows it to people."""
        return self._call(self._inner.cost)

    def context_usage(self, *, full: bool = False) -> ContextUsage:
        """Return how full the context window is; `full` counts every message."""
        return self._call(partial(self._inner.context_usage, full=full))

    def version(self) -> str:
        """Return the version of the CLI."""
        return self._call(self._inner.version)

    def file_suggestions(self, query: str) -> list[str]:
        """Return paths that match `query`, as typed so far."""
        return self._call(partial(self._inner.file_suggestions, query))

    def mark_read(self, path: str, mtime: float) -> None:
        """Mark a file as read by the CLI, so that it may be edited; `mtime` in milliseconds since 1970."""
        self._call(partial(self._inner.mark_read, path, mtime))

    def read_file(
        self, path: str, *, max_bytes: int | None = None, encoding: Literal["utf-8", "base64"] = "utf-8"
    ) -> FileContents:
        """Return a file of the working directory, as the CLI sees it; "base64" for one that is not text."""
        return self._call(partial(self._inner.read_file, path, max_bytes=max_bytes, encoding=encoding))

    def plan(self) -> SessionPlan:
        """Return the plan that the session has written in plan mode, if there is one."""
        return self._call(self._inner.plan)

    def workspace_diff(self) -> WorkspaceDiff:
        """Return how the working tree differs from its last commit. Files that git does not track are not in it."""
        return self._call(self._inner.workspace_diff)

    def side_question(self, question: str, *, history: Iterable[tuple[str, str]] = ()) -> SideAnswer:
        """Ask about the conversation, beside it: also during a query, without tools, and without a trace in it.

        Args:
            question: the question.
            history: earlier side questions with their answers.

        Raises:
            ControlTimeout: there is no answer within `control_timeout` seconds.
        """
        return self._call(partial(self._inner.side_question, question, history=history))

    def generate_title(self, description: str, *, save: bool = False) -> str | None:
        """Let a small model write a title for the session; None if it gave none.

        Args:
            description: what the session is about, such as its first prompt.
            save: also write it to the transcript, where lists of sessions show it. Default False.
        """
        return self._call(partial(self._inner.generate_title, description, save=save))


class Steering(SteeringWrapper):
    """Words that were given to a query while it works. Made by `Query.steer` and `Session.steer`."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """Id of the words as a prompt, by which Claude Code's messages name them; "" where they became none."""
        return self._inner.id

    @property
    def query(self) -> Query[Any] | None:
        """The query that the words were given to, or that was made of them; None: neither."""
        return self._found_query

    @property
    def was_sent(self) -> bool:
        """Whether the words were given to a turn."""
        return self._inner.was_sent

    def outcome(self) -> SteerOutcome:
        """Wait until Claude Code has said what became of the words.

        Returns:
            "taken": the turn that ran has them, from its next request to the model on. "next_turn": that turn had
            ended, by itself or for them (`when="now"`), and the query went on with them. "query": no turn ran, so
            they became a query of the session, `query`. "returned": nobody has them.
        """
        return self._call(self._inner.outcome)


@user_class
class Query(QueryWrapper[OutputT]):
    """One prompt being answered. Made by `query()` and `Agent.query()`. `Query[Invoice]` has an `Invoice` as output.

    Nothing runs until the query is used in one of these ways::

        result = query.result()             # the whole answer
        for message in query: ...           # messages as they come; leaving the loop ends the child
        with query: ...                     # started on entry, ended on exit; loops may be left and entered
            again

    Dropping an unused query warns. A loop over a query whose answer was read to its end yields the messages again; if
    they were not all kept (see `result`), it raises `UsageError`.

    The child is gone when `result()` returns, when a loop has ended, when the block is left, and when the query is
    dropped. Errors of the run itself (`max_turns`, API errors …) are values on the result; failures that prevent an
    answer raise an exception.

    Any thread may use it. `on_message` runs in the thread that waits in `result()`, with its context variables; an
    async one awaits on the event loop of `pilothouse.sync`. When Ctrl-C or another exception ends the wait, the process
    is ended too, unless a `with` block owns it. On that event loop, and after a fork, its methods raise `UsageError`.

    Raises:
        UsageError: a prompt or option that cannot work; raised here, before anything is started.
    """

    @property
    def id(self) -> str:
        """Id of this query, and the uuid of its first prompt, where that is known before the start.

        Messages and results that answer the prompt name it as `user_message_uuid`.
        """
        return self._inner.id

    @property
    def state(self) -> QueryState:
        """The state of the query.

        "new" until it is started; "queued" while it waits for its turn in a session, or for a limit of the API; then
        "active". At the end "completed" with a result, even one that reports an error; "interrupted"; "failed"
        without a result, so that `result()` raises; or "closed" before the result had arrived.
        """
        return self._inner.state

    @property
    def has_begun(self) -> bool:
        """Whether its turn has come. Stays True to the end, and False in a query that ended before.

        Until then `state` is "new" or "queued", and `steer` would wait.
        """
        return self._inner.has_begun

    @property
    def session_id(self) -> str | None:
        """Id of the session, None before the first message."""
        return self._inner.session_id

    @property
    def options(self) -> Options:
        """The options of the query."""
        return self._inner.options

    def text_stream(self) -> MessageIterator[str]:
        """Iterate over the text of the answer while it is written; nothing else, nothing twice.

        Together the pieces are `QueryResult.full_text`: what the model says after a tool call begins on a new line.
        When the API breaks off in the middle, they have the broken piece too.

        Turns `partial_messages` on; after the start it yields whole blocks unless that was set.

        Raises:
            ResultError: the run failed; raised by the loop, after the last piece of text.
            Interrupted: the query was interrupted; raised by the loop, too.

        Example::

            for text in ph.query("Explain this repo").text_stream():
                print(text, end="")
        """
        return MessageIterator(self._inner.text_stream(), self._call)

    def events(self) -> MessageIterator[QueryEvent]:
        """Iterate over typed events: text and thinking deltas, tools, permissions, retries, rejected outputs, end.

        Turns `partial_messages` on, as `text_stream` does. The last event is `Finished`, whose `error` is that of a
        failed run. Permission events follow the event of their tool call; they start when this method is called, with
        the requests that wait at that moment. In a session, they may have come before the query began.
        """
        return MessageIterator(self._inner.events(), self._call)

    def start(self) -> Self:
        """Start the child now and wait until it runs. Reading starts it automatically.

        Raises:
            ProcessError: the child could not be started.
        """
        self._call(self._inner.start)
        return self

    def steer(self, content: str | Sequence[Any], *, when: SteerTime = "next", if_late: LateWords = "ask") -> Steering:
        """Give words to the turn that runs, without waiting for its end. Returns when they are on their way.

        Before the first turn, it waits until the prompt of this query was sent, and gives the words after it. While
        `has_begun` is False, nothing is sent: the query waits for its turn in a session, or for a limit of the API.

        The model reads them with the results of the tools that run now, before its next step; the answer is part of
        this query.

        Args:
            content: text, or content blocks.
            when: "next" (default): after the tools that run now. "now": the CLI ends the turn and goes on with the
                words in another, so that the query has two results. It stops a tool that is about to begin; a command
                that runs comes to its end first.
            if_late: what to do when the turn ends before the CLI has taken the words. "ask" (default): the query goes
                on with them, in another turn. "return": take them back, also when the query is interrupted. If the CLI
                does not say within `control_timeout` whether it has them, the query ends without them.

        Returns:
            A `Steering`; its `outcome()` says what became of the words. When the query is over, or waits for something
            else than the model, that is "returned", and nothing was sent.

        Raises:
            UsageError: the query was not started, or cannot be steered; or words that cannot be a prompt.

        Example::

            with ph.query("Mend the tests") as query:
                for message in query:
                    if is_in_wrong_folder(message):
                        query.steer("Only in tests/unit, please")
        """
        return Steering(self._call(partial(self._inner.steer, content, when=when, if_late=if_late)), self._call, self)

    def result(self) -> QueryResult[OutputT]:
        """Read to the end and return the whole answer; the same object every time.

        After a loop over the query it reads the rest. `on_message` is called once for every message, in order; what
        it raises is logged and kept in `QueryResult.callback_errors`, and the stream goes on.

        Raises:
            ProcessError: the child could not be started, or ended before the answer was complete.
            QueryTimeout: `timeout`, `idle_timeout` or `startup_timeout` ran out.
            ControlError, ControlTimeout: the handshake, or the wait of `wait_for_mcp`, failed.
            SessionClosedError: the query was closed before.
        """
        return self._read_result(self._inner.result)

    def interrupt(self) -> None:
        """Stop the answer and wait until the CLI has stopped; the outcome is then `interrupted`.

        A query that was not started never starts, and one whose iterable has given no prompt yet ends: nothing is sent.
        When nothing runs any more, the method returns at once. Of several prompts, the current one is stopped; later
        ones are still answered, and the last one decides the outcome.

        Raises:
            UsageError: in the argv form, which has no control protocol.
            ControlError, ControlTimeout: the CLI refused, or did not respond.
        """
        self._call(self._inner.interrupt)

    def close(self) -> None:
        """End the query and wait until the child is gone. Idempotent, bounded, from any thread."""
        self._close(self._inner.aclose)


@user_class
class Session(SessionWrapper):
    """A conversation with one child. Made by `session()` and `Agent.session()`.

    ::

        with agent.session() as session:      # the child runs, or the error is raised here
            session.query("My name is Alice").result()
            answer = session.query("What is my name?").result()

    Queries are answered one after the other, in the order in which they were started, and each gets its own messages
    only; any thread may start one. A query that is left early is stopped, and the session goes on. When the child dies,
    its current query fails, and the next one starts a new child that resumes the conversation (`restart`).

    Any thread may use and close it. A query whose wait is ended by Ctrl-C is stopped, and the session continues. Hooks,
    permission callbacks and tools run on the event loop of `pilothouse.sync`, plain ones in worker threads, independent
    of the program's threads; plain ones may use this object. The `session` passed to them is that of `pilothouse`, for
    async ones. A session belongs to the process that made it: it cannot be used after a fork. Dropping it ends its
    child.

    Raises:
        OptionsError: settings that cannot work; raised here, before anything is started.
    """

    @property
    def id(self) -> str | None:
        """Id of the conversation; `clear` gives it a new one.

        Known before the start, except with `continue_latest`, or with a `Pool` that may have a child with its own id.
        """
        return self._inner.id

    @property
    def options(self) -> Options:
        """The settings of the session."""
        return self._inner.options

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        return self._inner.state

    def health(self) -> Health:
        """Whether the session can take a query, and if not, why."""
        return self._call(partial(call_on_loop, self._inner.health))

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is none, or when it is not a local process."""
        return self._inner.pid

    @property
    def server_info(self) -> Mapping[str, Any]:
        """The initialize response of the CLI: commands, agents, models, account, version."""
        return self._inner.server_info

    @property
    def restarts(self) -> int:
        """How often a new child took over after a crash."""
        return self._inner.restarts

    @property
    def waiting(self) -> int:
        """How many queries wait for their turn."""
        return self._inner.waiting

    @property
    def queries(self) -> list[Query[Any]]:
        """The queries that have not ended, in the order of their turns: the current one, then those that wait."""
        return self._find_kept(self._inner.queries)

    @property
    def costs(self) -> SessionCost:
        """What the session has cost so far, turn by turn and model by model; what was resumed is not included."""
        return self._inner.costs

    @property
    def asks(self) -> AskView:
        """The requests of this session that wait for somebody: permissions, questions, plans, elicitations.

        Raises:
            UsageError: the session was made without the option `asks`.
        """
        return self._inner.asks

    def start(self) -> Self:
        """Start the child now, and wait for its initialize response. Queries start it automatically.

        Raises:
            ProcessError: the child could not be started.
            SessionNotFoundError: there is no conversation with the id to resume.
            ControlError, ControlTimeout: a server that `wait_for_mcp` waits for is not connected, or not in time.
            SessionClosedError: the session was closed.
        """
        self._call(self._inner.start)
        return self

    def close(self) -> None:
        """End the session and wait until the child is gone. Idempotent, bounded, from any thread.

        The current query is stopped and fails with `SessionClosedError`, and so do those that wait.
        """
        self._close(self._inner.close)

    @overload
    def query(
        self,
        prompt: Prompt,
        options: Options | OptionsBuilder | None = None,
        *,
        on_message: OnMessage | None = None,
        output_type: type[OutputT],
        **overrides: Unpack[Settings],
    ) -> Query[OutputT]: ...

    @overload
    def query(
        self,
        prompt: Prompt,
        options: Options | OptionsBuilder | None = None,
        *,
        on_message: OnMessage | None = None,
        output_type: Any = None,
        **overrides: Unpack[Settings],
    ) -> Query[Any]: ...

    @hide_arguments
    @show_options
    def query(
        self,
        prompt: Prompt,
        options: Options | OptionsBuilder | None = None,
        *,
        on_message: OnMessage | None = None,
        output_type: Any = None,
        **overrides: Unpack[Settings],
    ) -> Query[Any]:
        """Make a query in this conversation. The query waits for its turn when it is read.

        Args:
            prompt: as for `Agent.query`.
            options: settings for this query alone. `model`, `permission_mode` and `max_thinking_tokens` are set before
                it and restored after it; settings of pilothouse, such as `timeout`, apply to it. For others, such as
                `system_prompt` or `max_turns`, a child of its own resumes the conversation. Background tasks end with
                their child. The next query or call that uses the child, such as `control`, `set_model` or `info`, has
                one with the settings of the session again.
            on_message: as for `Agent.query`.
            output_type: as for `Agent.query`; with a child of its own, unless the session has its schema as
                `json_schema`.
            **overrides: single settings that win over `options`.

        Returns:
            A `Query`; nothing is sent before it is used.

        Raises:
            OptionsError: a setting that cannot work, or that cannot differ for one query of a session, such as
                `session_id`, `cli` or `session_store`.
            SessionClosedError: the session was closed.
        """
        self._portal.check_process()
        return self._keep(
            Query(
                self._inner.query(
                    iterate_in_thread(prompt),
                    options,
                    on_message=hand_to_caller(on_message),
                    output_type=output_type,
                    **overrides,
                ),
                on_message,
                self._portal,
            )
        )

    def steer(self, content: str | Sequence[Any], *, when: SteerTime = "next", if_late: LateWords = "ask") -> Steering:
        """Give words to the turn that runs; see `Query.steer`. Without one, they are a query of their own.

        Args:
            content: as for `Query.steer`.
            when: as for `Query.steer`.
            if_late: as for `Query.steer`; "return" also when no turn runs.

        Returns:
            A `Steering`. If no turn ran, its `query` was started with the words: read it.

        Raises:
            SessionClosedError: the session was closed.
            UsageError: words that cannot be a prompt.
        """
        steering = self._call(partial(self._inner.steer, content, when=when, if_late=if_late))
        return Steering(steering, self._call, self._find_or_keep(steering.query, Query))

    def messages(self) -> MessageSubscription:
        """Subscribe to every message of the child from now on, across queries.

        This includes turns that the CLI starts by itself, and `StreamEvent`s if the session was made with
        `partial_messages=True`. Iterate over the subscription; `close` ends it, and so does the end of the session.
        Once 8 MiB are unread, the rest waits in a temporary file. When a new child has taken over after a crash, there
        is a `SystemMessage` of the subtype "session_restarted", with the `reason` in its `raw`.
        """
        return MessageSubscription(self._call(partial(call_on_loop, self._inner.messages)), self._portal)

    def control(self, subtype: str, /, **body: Any) -> Mapping[str, Any]:
        """Send any control request and return its response. Starts the child if need be.

        Args:
            subtype: of the request, such as "get_settings".
            **body: its other keys, as they are on the wire.

        Raises:
            ControlError: the CLI refused; `.code` says why.
            ControlTimeout: no response within `control_timeout`.
        """
        return self._call(partial(self._inner.control, subtype, **body))

    def login(self, account: LoginAccount = "claude") -> ClaudeLogin:
        """Begin a login at Claude: show the user its `url`, and hand over the code that the page shows.

        Claude Code keeps the login in its configuration directory, for other sessions too. A key that it was given,
        such as `ANTHROPIC_API_KEY`, goes before the login.

        Args:
            account: "claude": a subscription, Pro, Max, Team or Enterprise. "console": an account of the Console,
                which pays by use. Default "claude".

        Raises:
            LoginError: a policy of this machine forbids it; `.code` is "refused".
            UsageError: another `account`.
        """
        return ClaudeLogin(self._call(partial(self._inner.login, account)), self._call)

    @property
    def mcp(self) -> McpControls:
        """The MCP servers."""
        return McpControls(self._inner.mcp, self._call)

    @property
    def tasks(self) -> TaskControls:
        """Background work, and prompts that wait."""
        return TaskControls(self._inner.tasks, self._call)

    @property
    def settings(self) -> SettingsControls:
        """The settings of the CLI."""
        return SettingsControls(self._inner.settings, self._call)

    @property
    def info(self) -> InfoControls:
        """Information about the session."""
        return InfoControls(self._inner.info, self._call)

    def rewind_files(self, user_message_uuid: str, *, dry_run: bool = False) -> RewindResult:
        """Restore the files to their state when a user message came.

        Args:
            user_message_uuid: uuid of that message; the result of its query has it, as `user_message_uuid`.
            dry_run: only report what would change. Default False.

        Raises:
            ControlError: the message is not known. Without `enable_file_checkpointing` the result says so.
        """
        return self._call(partial(self._inner.rewind_files, user_message_uuid, dry_run=dry_run))

    def rename(self, title: str) -> None:
        """Give the session a title."""
        self._call(partial(self._inner.rename, title))

    def interrupt(self, *, cancel_queued: bool = False) -> InterruptResult:
        """Stop the current turn. Returns at once when the child is idle.

        Args:
            cancel_queued: also remove prompts from the queue of the CLI. Default False.
        """
        return self._call(partial(self._inner.interrupt, cancel_queued=cancel_queued))

    def set_model(self, model: str | None) -> str | None:
        """Use another model from the next turn on; None: the default. Returns its full name."""
        return self._call(partial(self._inner.set_model, model))

    def set_permission_mode(self, mode: str) -> str | None:
        """Change what happens when a tool needs permission. Returns the mode as the CLI names it.

        Raises:
            OptionsError: there is no such mode.
            ControlError: `.code` is "bypass_not_launched": the mode needs `allow_dangerously_skip_permissions`.
        """
        return self._call(partial(self._inner.set_permission_mode, mode))

    def set_max_thinking_tokens(
        self, tokens: int | None, display: Literal["summarized", "omitted", "highlights"] | None = None
    ) -> None:
        """Change the thinking budget, on models that have one; None: the default.

        Args:
            tokens: the budget.
            display: what of the thinking the child shows from now on. Default: as before.
        """
        self._call(partial(self._inner.set_max_thinking_tokens, tokens, display))

    @hide_arguments
    def update(self, **handlers: Unpack[Settings]) -> None:
        """Replace handlers from now on, in the running child; the conversation goes on.

        Requests that the old handlers work on stay with them. If the CLI must be notified, because other events have
        hooks now, the hooks wait for the end of the current query, and hooks of the CLI's own turns that run at that
        moment are cut off. If the call fails or is cancelled meanwhile, it may be repeated; the next child gets the
        hooks in any case.

        Args:
            **handlers: `can_use_tool`, `confirm`, `on_question`, `on_plan`, `hooks`, `custom_tools`,
                `on_elicitation`, `on_user_dialog`; None removes one.

        Raises:
            OptionsError: another setting; or a change for which the CLI must be restarted: the first permission
                handler, the removal of the last one, or the first `custom_tools`.
            ControlError, ControlTimeout: the CLI does not accept the hooks.
        """
        self._call(partial(self._inner.update, **handlers))

    def detach(self) -> str:
        """Leave the session, which goes on at its host; this object is closed.

        Queries of this process fail with `SessionClosedError`; the CLI goes on with what it is doing. Any process
        continues with `session(transport=WebSocketTransport(url, session=…))`.

        Returns:
            The id of the session at the host.

        Raises:
            UsageError: the session does not run, or not on a host.
        """
        return self._call(self._inner.detach)

    def clear(self) -> str | None:
        """Begin a new conversation in the same child, without the old one as context. Returns the new id."""
        return self._call(self._inner.clear)

    @hide_arguments
    def fork(self, **overrides: Unpack[Settings]) -> Session:
        """Make a new session that begins as a copy of this conversation, which stays as it is.

        The copy is what the CLI has written to disk when the fork starts; an answer under way is not in it.

        Args:
            **overrides: settings of the new session that differ.

        Raises:
            UsageError: the conversation is empty, or `persist_session` is off.
        """
        self._portal.check_process()
        return Session(partial(self._inner.fork, **overrides))


@user_class
class Agent(AgentWrapper):
    """A reusable configuration. Immutable, and may be shared by threads.

    Between queries an agent keeps one thing, which it shares with agents made by `with_options`: until when a limit of
    the API holds (for queries with `retry` or `on_usage_limit="wait"`). An agent has nothing to close.

    Settings that an agent does not have come from `configure()`, the configuration file, and `PILOTHOUSE_*` variables,
    in this order, as they are when a query is made.

    A prompt that is a plain iterable is read in its own thread; an async one, and the callback `stderr`, run on the
    event loop of `pilothouse.sync`.

    Args:
        options: settings to start from.
        **settings: settings that win over `options`; `pilothouse.Options` explains them.

    Raises:
        OptionsError: an unknown option or a wrong value.
    """

    __slots__ = ()

    @property
    def options(self) -> Options:
        """The effective settings of a query of this agent, all layers merged; `.explain()` names the source of each.

        Raises:
            OptionsError: the configuration file or a variable has an invalid value.
        """
        return self._inner.options

    @hide_arguments
    def with_options(self, options: Options | OptionsBuilder | None = None, **changes: Unpack[Settings]) -> Agent:
        """Return a new agent with changed settings; this agent stays as it is."""
        return self.wrap(self._inner.with_options(options, **changes))

    @overload
    def query(
        self,
        prompt: Prompt,
        options: Options | OptionsBuilder | None = None,
        *,
        on_message: OnMessage | None = None,
        output_type: type[OutputT],
        **overrides: Unpack[Settings],
    ) -> Query[OutputT]: ...

    @overload
    def query(
        self,
        prompt: Prompt,
        options: Options | OptionsBuilder | None = None,
        *,
        on_message: OnMessage | None = None,
        output_type: Any = None,
        **overrides: Unpack[Settings],
    ) -> Query[Any]: ...

    @hide_arguments
    @show_options
    def query(
        self,
        prompt: Prompt,
        options: Options | OptionsBuilder | None = None,
        *,
        on_message: OnMessage | None = None,
        output_type: Any = None,
        **overrides: Unpack[Settings],
    ) -> Query[Any]:
        """Make a query: `.result()` returns the whole answer, a loop yields messages as they come.

        ::

            reviewer = ph.Agent(model="opus", tools=["Read", "Grep"])
            result = reviewer.query("Review the last commit", timeout=600).result()

        Args:
            prompt: text, a list of content blocks (text, images, documents), or a sync or async iterable of user
                messages, sent as they come.
            options: settings that win over those of the agent, field by field.
            on_message: called once for every message, in order, in the thread that waits in `result()`; sync or async.
            output_type: a msgspec struct, dataclass, TypedDict or pydantic model, or a JSON Schema: the answer must
                fit, and `QueryResult.output` is the value.
            **overrides: single settings that win over `options`.

        Returns:
            A `Query`; nothing is started before it is used.

        Raises:
            UsageError: the prompt or an option cannot work; raised here, before anything is started.
        """
        return Query(
            self._inner.query(
                iterate_in_thread(prompt),
                options,
                on_message=hand_to_caller(on_message),
                output_type=output_type,
                **overrides,
            ),
            on_message,
        )

    @hide_arguments
    @show_options
    def session(
        self,
        options: Options | OptionsBuilder | None = None,
        *,
        continue_latest: bool = False,
        fork: bool = False,
        **overrides: Unpack[Settings],
    ) -> Session:
        """Make a session: a conversation with one child, over many queries; use it with `with`.

        Nothing is started here.

        Args:
            options: settings that win over those of the agent, field by field.
            continue_latest: continue the latest conversation of the directory. Default False.
            fork: continue in a copy, and leave the original as it was. Default False.
            **overrides: single settings that win over `options`; `resume=id` continues a conversation.

        Raises:
            OptionsError: settings that cannot work.
        """
        return Session(partial(self._inner.session, options, continue_latest=continue_latest, fork=fork, **overrides))

    @hide_arguments
    def prewarm(
        self,
        count: int = 1,
        options: Options | OptionsBuilder | None = None,
        *,
        sessions: bool = False,
        output_type: Any = None,
        **overrides: Unpack[Settings],
    ) -> None:
        """Start children in advance and wait until they are ready, so that the next queries need no start.

        Needs a `transport` that keeps children ready, such as `Pool` of the package `pilothouse_pool`. A child is used
        only by a query with the very same settings, as far as the CLI sees them (see `Pool`). So pass here too what a
        query sets in addition to the agent: `partial_messages=True` for `text_stream` and `events`.

        Args:
            count: how many to keep ready. Default 1.
            options: as for `query`.
            sessions: whether they are for `session`, whose children are started differently. Default False.
            output_type: as for `query`.
            **overrides: as for `query`.

        Raises:
            OptionsError: settings that cannot work, or that cannot be prewarmed; the transport keeps no children ready.
            PilothouseError: a child could not be started.
        """
        self._call(
            partial(self._inner.prewarm, count, options, sessions=sessions, output_type=output_type, **overrides)
        )


@hide_arguments
@show_options
def configure(
    options: Options | OptionsBuilder | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    **settings: Unpack[Settings],
) -> Agent:
    """Change settings for every agent of this process, the default agent included.

    The change holds for all threads and tasks; what differs from request to request belongs into an `Agent`. Calls
    add up, field by field; `None` sets a field back to its default. Running queries do not change.

    Args:
        options: settings for all agents.
        file: a configuration file, which is read now and replaces one that was named before, also by the variable
            `PILOTHOUSE_CONFIG`. Its settings lie beneath all others but those of `PILOTHOUSE_*` variables. Default:
            the file stays as it is.
        **settings: single settings that win over `options`.

    Returns:
        The default agent.

    Raises:
        OptionsError: an unknown option or a wrong value; then nothing is changed.
        ConfigError: the file cannot be read, or has an invalid value; then nothing is changed.
    """
    client.configure(options, file=file, **settings)
    return default_agent()


def default_agent() -> Agent:
    """Return the agent behind the module-level `query`: that of the context if any, else that of the process."""
    return wrap_default(Agent)


def set_default_agent(agent: Agent) -> Agent:
    """Put another agent behind the module-level `query`, here and in `pilothouse`.

    Returns:
        The previous agent. `pilothouse_testing.as_default` is a context manager that puts it back.

    Raises:
        UsageError: `agent` is not an agent of `pilothouse.sync`.
    """
    return replace_default(agent, Agent)


@overload
def query(
    prompt: Prompt,
    options: Options | OptionsBuilder | None = None,
    *,
    on_message: OnMessage | None = None,
    output_type: type[OutputT],
    **overrides: Unpack[Settings],
) -> Query[OutputT]: ...


@overload
def query(
    prompt: Prompt,
    options: Options | OptionsBuilder | None = None,
    *,
    on_message: OnMessage | None = None,
    output_type: Any = None,
    **overrides: Unpack[Settings],
) -> Query[Any]: ...


@hide_arguments
@show_options
def query(
    prompt: Prompt,
    options: Options | OptionsBuilder | None = None,
    *,
    on_message: OnMessage | None = None,
    output_type: Any = None,
    **overrides: Unpack[Settings],
) -> Query[Any]:
    """Make a query with the default agent: `.result()` returns the whole answer, a loop yields messages.

    ::

        result = ph.query("What does this repository do?", cwd="~/src/app", max_turns=5).result()
        print(result.raise_for_error().text)

        for text in ph.query("Explain the parser").text_stream():
            print(text, end="")

        result = ph.query("Extract the invoice", output_type=Invoice).result()  # result.output is an Invoice

    A query needs a key or a login: set ANTHROPIC_API_KEY, pass `api_key`, or use `/login` in `pilothouse chat`. Tools
    that change something need a permission: `permission_mode="acceptEdits"`, `allowed_tools`, `can_use_tool`.

    Args:
        prompt: text, a list of content blocks (text, images, documents), or a sync or async iterable of user messages.
        options: settings that win over those of the agent, field by field.
        on_message: called once for every message, in order, in the thread that waits in `result()`; sync or async.
        output_type: a dataclass, TypedDict, msgspec struct, pydantic model or JSON Schema: the answer must fit, and
            `QueryResult.output` is the value. Default None: plain text.
        **overrides: single settings that win over `options`, such as `model`, `timeout` (seconds), `max_budget_usd`;
            `pilothouse.options.TABLE` and the command `pilothouse options` explain each.

    Returns:
        A `Query`; nothing is started before it is used.

    Raises:
        UsageError: the prompt or an option cannot work; raised here, before anything is started.
    """
    return default_agent().query(prompt, options, on_message=on_message, output_type=output_type, **overrides)


@hide_arguments
@show_options
def session(
    options: Options | OptionsBuilder | None = None,
    *,
    continue_latest: bool = False,
    fork: bool = False,
    **overrides: Unpack[Settings],
) -> Session:
    """Make a session of the default agent: a conversation with one child; use it with `with`.

    ::

        with ph.session(model="opus") as session:
            session.query("My name is Alice").result()
            print(session.query("What is my name?").result().text)

    Args:
        options: settings that win over those of the agent, field by field.
        continue_latest: continue the latest conversation of the directory. Default False.
        fork: continue in a copy, and leave the original as it was. Default False.
        **overrides: single settings that win over `options`; `resume=id` continues a conversation.

    Returns:
        A `Session`; nothing is started before it is used.

    Raises:
        OptionsError: settings that cannot work.
    """
    return default_agent().session(options, continue_latest=continue_latest, fork=fork, **overrides)
