"""How settings become a child: its invocation, its transport, its limits, and the run of a query with its own child."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pilothouse.callbacks import check_signature, convert_failures
from pilothouse.client.controls import with_mcp_wait
from pilothouse.client.handlers import RequestHandlers
from pilothouse.client.middleware import Middleware
from pilothouse.client.observation import instrument_launch
from pilothouse.client.settings_check import with_settings_check
from pilothouse.engine import ChildRun, HandlerSet, Prompts, QueryLimits, QueryPlace, QueryRun
from pilothouse.options import Invocation, Options, render
from pilothouse.options.credentials import CREDENTIAL_VARIABLES
from pilothouse.products import load_product
from pilothouse.transports import CliTransport, Transport
from pilothouse.transports.base import TransportFactory, adapt_transport, missing_methods

SETTINGS_OPTIONS = frozenset({"settings", "managed_settings", "sandbox", "extra_args"})
"""Options with which settings may reach the CLI."""


def make_launch(
    options: Options, handlers: RequestHandlers | None, prompt: Any = None
) -> tuple[Invocation, HandlerSet | None]:
    """Return the invocation of a child with `options`, and its handlers; the argv form has the prompt in it."""
    if handlers is None:
        in_argv = options.prompt_via == "argv" and isinstance(prompt, str)
        invocation, handler_set = render(options, os.environ, prompt=prompt if in_argv else None), None
    else:
        invocation = handlers.merge_initialize(render(handlers.merge_options(options), os.environ))
        handler_set = handlers.make_handler_set()
    if isinstance(options.transport, TransportFactory):
        invocation = options.transport.adapt_invocation(invocation)
    if not SETTINGS_OPTIONS.isdisjoint(options):
        handler_set = with_settings_check(handler_set, invocation, options)
    if options.wait_for_mcp:
        handler_set = with_mcp_wait(handler_set, options)
    return invocation, handler_set


def make_transport(options: Options) -> Transport:
    """Make the transport that `options` specify, not started.

    Raises:
        OptionsError: the option is not a transport, or a session store cannot be used.
    """
    given = options.transport
    if given is None:
        made: Transport = CliTransport()
    elif isinstance(given, Transport):
        made = given
    else:
        is_one = not isinstance(given, type) and not missing_methods(given)
        if callable(given) and not is_one:
            check_signature(given, "transport")
            with convert_failures("transport"):
                given = given()
        made = adapt_transport(given)
    if options.session_store is None:
        return made
    return load_product("pilothouse.session_stores", "mirror", "session_store")(made, options)


def make_limits(options: Options) -> QueryLimits:
    """Make the limits of a query from `options`."""
    return QueryLimits(
        timeout=options.timeout,
        idle_timeout=options.idle_timeout,
        startup_timeout=options.startup_timeout,
        control_timeout=options.control_timeout,
        max_line_bytes=options.max_line_bytes,
        until_idle=options.until == "idle",
    )


def make_own_run(
    prompt: Any,
    handlers: RequestHandlers | None,
    options: Options,
    prompts: Prompts,
    middlewares: Sequence[Middleware],
) -> QueryRun:
    """Make the run of a query with a child of its own.

    Args:
        prompt: as it was given, for the argv form.
        handlers: for the requests of the child, if it needs any.
        options: the settings of the query.
        prompts: what is sent.
        middlewares: those of the query.
    """
    invocation, handler_set = make_launch(options, handlers, prompt)
    if middlewares:
        invocation, handler_set = instrument_launch(middlewares, invocation, handler_set, options)
    limits = make_limits(options)
    child = ChildRun(make_transport(options), invocation, limits, handler_set)
    if handlers is not None:
        handlers.child = child
    return QueryRun(QueryPlace(child.run_for), prompts, limits, middlewares)


def known_environ(options: Options) -> Mapping[str, str] | None:
    """Return the environment of a child with `options`, as far as it is known to hold a token; None: not known."""
    invocation = render(options, os.environ)
    if options.transport is None:
        return invocation.env
    given = {name: value for name, value in invocation.explicit_env.items() if value is not None}
    return given if not given.keys().isdisjoint(CREDENTIAL_VARIABLES) else None
