"""`QueryResult` over recorded and hand-made messages; the typed errors of failed results."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from places import TRANSCRIPTS

from pilothouse import errors
from pilothouse.client.event_reader import TextReader
from pilothouse.client.result import QueryResult, make_result_error
from pilothouse.messages import AssistantMessage, Message, ResultMessage, decode, from_dict
from pilothouse_testing import frames

GOLDEN = [
    b'{"type":"system","session_id":"abc-123"}',
    b'{"type":"assistant","content":[{"type":"text","text":"I found..."}]}',
    b'{"type":"result","result":"Analysis complete.","total_cost_usd":0.042}',
]


def recorded(name: str) -> list[Message]:
    lines = (json.loads(line) for line in (TRANSCRIPTS / f"{name}.ndjson").read_text().splitlines())
    return [from_dict(line["msg"]) for line in lines if line["dir"] == "out" and isinstance(line["msg"], dict)]


TALKS = sorted(
    path.stem for path in TRANSCRIPTS.glob("*.ndjson") if b'"type":"system"' in path.read_bytes().replace(b" ", b"")
)


def result(**fields: Any) -> ResultMessage:
    message = from_dict({"type": "result", "subtype": "success", "is_error": False, "num_turns": 1, **fields})
    assert isinstance(message, ResultMessage)
    return message


@pytest.mark.requirement("L58", "L41", "L43", "L44", "L47", "L49", "E14")
def test_the_three_lines_of_the_golden_run() -> None:
    answer = QueryResult([decode(line) for line in GOLDEN])
    assert answer.session_id == "abc-123"
    assert answer.text == "Analysis complete."
    assert answer.full_text == "I found..."
    assert answer.cost_usd == 0.042
    assert answer.is_success
    assert answer.outcome == "success"


@pytest.mark.parametrize("name", TALKS)
def test_the_streamed_text_is_the_full_text(name: str) -> None:
    messages = recorded(name)
    reader = TextReader()
    told = "".join(text for message in messages for text in reader.read(message))
    if not any(word in name for word in ("mid_stream", "malformed")):  # there it has what broke off, too
        assert told == QueryResult(messages).full_text


def test_streamed_texts_of_two_api_messages_are_separated_and_of_one_are_not() -> None:
    def streamed(message_id: str, *texts: str, **fields: Any) -> list[Message]:
        deltas = (
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}} for t in texts
        )
        events = [{"type": "stream_event", "event": d, "api_message_id": message_id, **fields} for d in deltas]
        whole = frames.assistant("".join(texts), message_id=message_id, **fields)
        return [from_dict(frame) for frame in (*events, whole)]

    messages = [
        *streamed("msg_1", "A", "."),
        *streamed("msg_2", "B", "."),
        *streamed("msg_9", "of a sub-agent", parent_tool_use_id="toolu_1"),
        *streamed("msg_3", " C"),
        *streamed("msg_4", "ut off", resume_reason="max_output_tokens"),
        *streamed("msg_5", "D\n"),
        *streamed("msg_6", "E"),
        from_dict(frames.assistant("F", message_id="msg_7")),
    ]
    reader = TextReader()
    told = "".join(text for message in messages for text in reader.read(message))
    assert told == QueryResult(messages).full_text == "A.\nB. Cut off\nD\nE\nF"


def test_streamed_text_of_a_message_without_a_beginning_comes_once() -> None:
    """The CLI then names no message of the deltas; llama.cpp begins an answer so whose first character is an emoji."""

    def stream(text: str, message_id: str) -> list[dict[str, Any]]:
        deltas = [{**frame, "api_message_id": None} for frame in frames.stream_text(text)[1:] if "event" in frame]
        return [*deltas, frames.assistant(text, message_id=message_id)]

    for first in (frames.stream_text("In pieces"), stream("In pieces", "m1")):
        reader = TextReader()
        told = [text for frame in (*first, *stream("And more", "m2")) for text in reader.read(from_dict(frame))]
        assert "".join(told).split() == ["In", "pieces", "And", "more"] or "".join(told) == "In piecesAnd more"


def test_a_result_as_json() -> None:
    answer = QueryResult(recorded("04_tool_use_bash"))
    told = json.loads(json.dumps(answer.to_dict()))
    assert (told["text"], told["is_success"], told["turns"], told["error"]) == (answer.text, True, 2, None)
    assert told["model_usage"]["claude-opus-5-5"]["inputTokens"] == 20
    failed = QueryResult(recorded("30_http_529")).to_dict()
    assert (failed["is_success"], failed["text"], failed["error"]["type"]) == (False, "", "OverloadedError")


@pytest.mark.requirement("L45", "L46", "L48", "L49", "L50", "L51", "L52", "L53")
def test_a_run_with_a_tool() -> None:
    answer = QueryResult(recorded("04_tool_use_bash"))
    assert answer.turns == 2
    assert answer.duration_ms > 0
    assert [type(m) for m in answer.assistant_messages] == [AssistantMessage] * 3
    assert answer.full_text == "Running it.\nHello from fake model (step 1)."
    assert answer.text == "Hello from fake model (step 1)."
    assert [(t.name, t.input["command"]) for t in answer.tool_uses] == [("Bash", "echo hi-from-bash")]
    assert answer.model_usage["claude-opus-5-5"].input_tokens == 20
    assert (answer.cache_read_tokens, answer.cache_creation_tokens) == (0, 0)
    assert answer.usage is not None
    assert answer.usage.output_tokens == 24


@pytest.mark.requirement("L45")
def test_the_turns_of_all_prompts_are_added_up() -> None:
    assert QueryResult([result(num_turns=2), result(num_turns=3)]).turns == 5


@pytest.mark.requirement("L47", "E26")
def test_the_session_id_is_that_of_the_closing_message_else_the_last_one() -> None:
    """After `/clear` a turn ends in another session than it began in."""
    lines = [json.dumps({"type": "system", "subtype": "init", "session_id": key}).encode() for key in "abc"]
    a, b, c = map(decode, lines)
    assert QueryResult([a, b]).session_id == "b"
    assert QueryResult([a, result(session_id="b"), c]).session_id == "b"


@pytest.mark.requirement("L52", "L53")
def test_cache_tokens_are_summed_over_models() -> None:
    usage = {
        "a": {"cacheReadInputTokens": 5, "cacheCreationInputTokens": 1},
        "b": {"cacheReadInputTokens": 7, "cacheCreationInputTokens": None},
    }
    answer = QueryResult([result(modelUsage=usage)])
    assert (answer.cache_read_tokens, answer.cache_creation_tokens) == (12, 1)


@pytest.mark.requirement("L44", "L45", "L46")
def test_without_a_closing_message_everything_is_empty() -> None:
    answer = QueryResult([])
    assert (answer.text, answer.full_text, answer.cost_usd, answer.turns, answer.duration_ms) == ("", "", None, 0, 0)
    assert answer.session_id is None
    assert answer.structured is None
    assert answer.model_usage == {}
    assert answer.tool_uses == []
    assert answer.usage is None


@pytest.mark.requirement("L42")
def test_structured_output() -> None:
    answer = QueryResult(recorded("28_structured_output"))
    assert isinstance(answer.structured, dict)
    as_text = [result(result='{"a": 1}')]
    assert QueryResult(as_text).structured is None
    assert QueryResult(as_text, structured_expected=True).structured == {"a": 1}
    assert QueryResult([result(result="no json")], structured_expected=True).structured is None


def test_a_woken_background_task_does_not_replace_the_answer() -> None:
    woken = result(result="task done", origin={"kind": "task-notification"})
    assert QueryResult([result(result="the answer"), woken]).text == "the answer"
    assert QueryResult([woken]).text == "task done"


@pytest.mark.parametrize(
    ("recording", "kind", "status"),
    [
        ("30_http_400", errors.ExecutionError, 400),
        ("30_http_401", errors.AuthenticationError, 401),
        ("30_http_403", errors.AuthenticationError, 403),
        ("30_http_413", errors.ContextOverflowError, 413),
        ("30_http_429", errors.RateLimitError, 429),
        ("30_http_500", errors.ExecutionError, 500),
        ("30_http_529", errors.OverloadedError, 529),
        ("38_invalid_model", errors.InvalidModelError, 404),
        ("32_connection_refused", errors.ExecutionError, None),
        ("35_max_turns", errors.MaxTurnsError, None),
        ("35b_max_budget", errors.BudgetError, None),
        ("28d_structured_output_always_invalid", errors.StructuredOutputError, None),
        ("27e_resume_missing", errors.SessionNotFoundError, None),
    ],
)
@pytest.mark.requirement("L43", "G41")
def test_recorded_failures_have_their_own_error(
    recording: str, kind: type[errors.ResultError], status: int | None
) -> None:
    answer = QueryResult(recorded(recording))
    assert type(answer.error) is kind
    assert not answer.is_success
    assert answer.outcome == "error"
    assert isinstance(answer.error, errors.ResultError)
    assert answer.error.api_error_status == status
    assert answer.error.result is answer.result
    with pytest.raises(kind):
        answer.raise_for_error()
    again = pickle.loads(pickle.dumps(answer.error))
    assert (type(again), str(again), again.api_error_status) == (kind, str(answer.error), status)


@pytest.mark.parametrize("recording", ["16_interrupt_mid_stream", "17_interrupt_mid_tool"])
def test_an_interrupt_is_no_failure(recording: str) -> None:
    messages = recorded(recording)
    first = next(i for i, m in enumerate(messages) if isinstance(m, ResultMessage))
    answer = QueryResult(messages[: first + 1])
    assert answer.outcome == "interrupted"
    assert isinstance(answer.error, errors.Interrupted)
    assert "ede_diagnostic" not in str(answer.error)


def test_quota_and_reset_time() -> None:
    limit = from_dict({"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "resetsAt": 1795291391}})
    failed = result(is_error=True, result="You've hit your session limit · resets 3pm", api_error_status=429)
    error = make_result_error(failed, [limit])
    assert type(error) is errors.QuotaError
    assert error.resets_at == 1795291391
    plain = make_result_error(result(is_error=True, result="API Error: 429", api_error_status=429), [limit])
    assert type(plain) is errors.RateLimitError
    assert plain.resets_at == 1795291391


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        (
            {"result": "API Error: 400 prompt is too long: 250000 tokens", "api_error_status": 400},
            errors.ContextOverflowError,
        ),
        ({"terminal_reason": "prompt_too_long", "result": "x"}, errors.ContextOverflowError),
        ({"result": "Not logged in · Please run /login"}, errors.AuthenticationError),
        ({"stop_reason": "refusal", "result": "API Error: refused"}, errors.RefusalError),
        ({"subtype": "error_of_tomorrow", "errors": []}, errors.ExecutionError),
    ],
)
def test_further_failures(fields: dict[str, Any], kind: type[Exception]) -> None:
    error = QueryResult([result(is_error=True, **fields)]).error
    assert type(error) is kind
    assert str(error)


@pytest.mark.requirement("G40", "G42", "G44", "G39", "G43")
def test_causes_are_found_through_chains_and_groups() -> None:
    target = errors.CLINotFoundError("none", stderr="tail", exit_code=3)
    outer = RuntimeError("wrapped")
    outer.__cause__ = target
    group = ExceptionGroup("many", [ValueError(), outer])
    assert errors.find_cause(group, errors.CLINotFoundError) is target
    assert errors.find_cause(outer, errors.ProcessError) is target
    assert errors.find_cause(outer, errors.MessageParseError) is None
    loop = ValueError()
    loop.__cause__ = loop
    assert errors.find_cause(loop, KeyError) is None
    parse = errors.MessageParseError("bad", data={"a": 1})
    assert errors.find_cause(parse, errors.MessageParseError) is parse
    assert pickle.loads(pickle.dumps(parse)).data == {"a": 1}


def every_error(kind: type[errors.PilothouseError]) -> list[type[errors.PilothouseError]]:
    """Those of the room; other rooms have some that never leave them."""
    found = [kind, *(sub for child in kind.__subclasses__() for sub in every_error(child))]
    return [each for each in found if each.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", every_error(errors.PilothouseError), ids=lambda k: k.__name__)
def test_every_error_pickles_and_stands_in_the_drawing(kind: type[errors.PilothouseError]) -> None:
    error = kind("what happened")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.__dict__) == (kind, "what happened", error.__dict__)
    assert kind.__name__ in (errors.__doc__ or "")


def test_timeouts_and_usage_errors_are_also_the_builtin_ones() -> None:
    assert issubclass(errors.QueryTimeout, TimeoutError)
    assert issubclass(errors.ControlTimeout, TimeoutError)
    assert issubclass(errors.OptionsError, ValueError)


def test_dictionaries_are_not_messages() -> None:
    given: Any = frames.sample_messages()
    with pytest.raises(errors.UsageError, match=r"expected messages, got dictionaries; from_dict of pilothouse\.mess"):
        QueryResult(given)
