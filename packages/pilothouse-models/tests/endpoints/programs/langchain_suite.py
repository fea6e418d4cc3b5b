"""All of `langchain-tests` for `ChatPilothouse`, over the real CLI; run by the Python of an environment of its own.

The model behind the CLI is scripted: it calls declared tools with values of the right types, and repeats results.
"""

import base64
import json
import os
import re

import httpx
import pytest
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from pilothouse_models.langchain import ChatPilothouse
from pilothouse_testing import ScriptedModel

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PDF = b"%PDF-1.4\n1 0 obj<<>>endobj\ntrailer<<>>\n%%EOF\n"
VALUES = {"integer": 3, "number": 3, "string": "foo", "array": ["foo"], "boolean": True, "object": {}}
scripted = ScriptedModel()


def make_value(attributes):
    choices = re.search(r"\(([^()]+?) or [^()]+\)<", attributes)
    kind = re.search(r'type="(\w+)', attributes)
    return choices[1].split(",")[0].strip('" ') if choices else VALUES[kind[1] if kind else "string"]


def answer(request):
    """Call a tool of the request once, then answer with its result; count as told, and be funny if asked."""
    system, asked = request.system_text, json.dumps(request.messages, ensure_ascii=False)
    nonce = re.search(r"<tool_use-(\w+)>", system)
    last = asked.rpartition("</assistant-")[2] or asked
    if found := re.findall(r"<result>(.*?)</result>", last):
        return f"The result is {found[-1]}."
    if nonce is None or ("joke" in asked and "StructuredOutput" not in system and "Joke" not in system):
        return "Chat models answer, one word after the other: 1, 2, 3."
    tools = re.findall(r'<tool name="([^"]+)">(.*?)</tool>', system.partition("## The tools")[2], re.DOTALL)
    wanted = re.search(r"Call the tool (\w+) in your next answer", asked)
    named = [tool for tool in tools if wanted and tool[0] == wanted[1]]
    must = "StructuredOutput" in system or "at least one of the tools" in asked or named
    if not must and not re.search(r"magic|tool|get_weather|current weather|call", asked.partition("<system")[0] + last):
        return "Hello! There is nothing to call."
    name, body = (named or tools)[-1 if "StructuredOutput" in system else 0]
    parameters = re.findall(r'<parameter name="([^"]+)"(.*?)(?:/>|</parameter>)', body, re.DOTALL)
    given = {key: make_value(rest) for key, rest in parameters}
    if name == "StructuredOutput" and not given:  # any object: the prompt says which
        given = dict.fromkeys(("setup", "punchline"), "foo")
    if found := re.search(r"[\u4e00-\u9fff]+", last):
        given = dict.fromkeys(given, found[0])
    call = f"<tool_name>{name}</tool_name><arguments>{json.dumps(given)}</arguments>"
    return f"<tool_use-{nonce[1]}>{call}</tool_use-{nonce[1]}>"


@pytest.fixture(autouse=True, scope="session")
def _scripted_model():
    with scripted:
        scripted.default = answer
        yield


@pytest.fixture(autouse=True)
def _pictures_from_here(monkeypatch):
    """The suite downloads a picture and a document; they come from here."""

    def get(url, **settings):
        content = PDF if "pdf" in str(url) else base64.b64decode(PNG)
        return httpx.Response(200, content=content, request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", get)


class Standard:
    chat_model_class = ChatPilothouse

    @property
    def chat_model_params(self):
        return {"model": "sonnet", "settings": {"cli": os.environ["CLI"]}}


class TestUnit(Standard, ChatModelUnitTests):
    pass


class TestIntegration(Standard, ChatModelIntegrationTests):
    supports_image_inputs = True
    supports_image_urls = True
    supports_pdf_inputs = True
    supports_image_tool_message = True
    supports_pdf_tool_message = True
    supports_anthropic_inputs = True
    supports_json_mode = True
    returns_usage_metadata = True
    model_override_value = "claude-haiku-4-5"

    @property
    def chat_model_params(self):
        env = scripted.env()
        return {"model": "sonnet", "settings": {"cli": os.environ["CLI"], "inherit_env": False, "env": env}}
