"""Libraries that speak to OpenAI and Anthropic, as clients of the endpoints; each in an environment of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from endpoint_server import NONCE, TOKEN, EndpointServer, ToldTransports, call_text, speak
from judge_environment import PROGRAMS, make_environment, run_program
from places import PYTHONPATH

from pilothouse_models.endpoints import EndpointModels
from pilothouse_testing import frames

pytestmark = pytest.mark.matrix

CALL = call_text("weather", city="Oslo")
OUTPUT = call_text("StructuredOutput", name="Oslo")
JUDGES = ("openai-agents", "instructor", "anthropic")


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a program against endpoints whose model says what the arguments are, one for each request."""
    monkeypatch.setattr("pilothouse_models.stream.derive_nonce", lambda *_: NONCE)

    def run(environment: tuple[str, ...], program: str, *requests: Any, **env: str) -> Any:
        python = make_environment(*environment)
        with EndpointServer(EndpointModels(transport=ToldTransports(*requests))) as server:
            return run_program(python, program, server.url, TOKEN, **env)

    return run


def test_openai_agents(judge: Callable[..., Any]) -> None:
    script = [CALL, "It is 18.", CALL, "It is 18 again.", OUTPUT]
    found = judge(("judges", *JUDGES), "agents_judge.py", *script, *script, "Now.", "More.")
    kinds = ["tool_call_item", "tool_call_output_item", "message_output_item"]
    assert found["responses"] == ["It is 18.", 2, 40, "It is 18 again.", "Oslo", kinds]
    assert found["chat"] == ["It is 18.", 2, 40, "It is 18 again.", "Oslo", kinds]
    assert found["chained"] == "More."


def test_instructor(judge: Callable[..., Any]) -> None:
    city, wrong = call_text("City", name="Oslo"), call_text("City", nome="Oslo")
    script = [city, OUTPUT, '{"name": "Oslo"}', city, [speak(wrong), speak(city)]]
    found = judge(("judges", *JUDGES), "instructor_judge.py", *script)
    assert list(found.values()) == ["Oslo"] * 5


def test_litellm(judge: Callable[..., Any]) -> None:
    said = frames.assistant("API Error", error="rate_limit", is_api_error_message=True)
    limit = [frames.init(), said, frames.result("API Error", is_error=True, api_error_status=429)]
    script = [CALL, "It is 18.", limit]
    found = judge(
        ("litellm", "litellm", "mcp"), "litellm_judge.py", *script, *script, LITELLM_LOCAL_MODEL_COST_MAP="True"
    )
    expected = ["weather", {"city": "Oslo"}, "tool_calls", 4, "It is 18.", "RateLimitError"]
    assert found == {"openai/sonnet": expected, "anthropic/sonnet": expected}


def test_inspect_ai(judge: Callable[..., Any]) -> None:
    script = [CALL, "It is 18 degrees."]
    found = judge(("inspect", "inspect-ai", "openai", "anthropic"), "inspect_judge.py", *script, *script)
    expected = ["success", 1.0, ["user", "assistant", "tool", "assistant"]]
    assert found == {"openai-api/pilothouse/sonnet": expected, "anthropic/sonnet": expected}


@pytest.mark.real_cli
def test_all_standard_tests_of_langchain_pass(real_cli: str, tmp_path: Path) -> None:
    """Skipped: what needs audio, an address in the environment, recorded requests, or a model that LangChain loads."""
    python = make_environment("langchain", "langchain-tests", "langchain", "anyio", "msgspec", "starlette", "uvicorn")
    suite = PROGRAMS / "langchain_suite.py"
    plain = [
        "--noconftest", "-c", "/dev/null", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--rootdir",
        tmp_path,
    ]  # fmt: skip
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "--tb=short", *plain, "--junitxml", tmp_path / "results.xml", suite],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CLI": real_cli, "PYTHONPATH": PYTHONPATH},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [found] = ElementTree.parse(tmp_path / "results.xml").getroot()
    ran = {name: int(found.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    assert ran["tests"] - ran["skipped"] >= 55, ran
