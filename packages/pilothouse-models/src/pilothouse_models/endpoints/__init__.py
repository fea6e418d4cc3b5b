"""Endpoints in the form of OpenAI and Anthropic: any client with a base URL reaches Claude Code. Extra `[server]`.

Owns the translation between the protocols of the vendors and `LanguageModel` or `Agent`. Knows no vendor's library.
Start with `application`::

    routes (Starlette) ── application ── openai_chat, openai_responses, anthropic_messages: requests, answers, errors
                             └── models ── LanguageModel, or AgentModel: Claude Code with its own tools

A new protocol is a `Dialect` beside the three.
"""

try:
    from pilothouse_models.endpoints.application import anthropic_routes as anthropic_routes
    from pilothouse_models.endpoints.application import openai_routes as openai_routes
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"endpoints need {missing.name}; install it with: pip install 'pilothouse[server]'", name=missing.name
    ) from missing

from pilothouse_models.endpoints.models import EndpointModels as EndpointModels
