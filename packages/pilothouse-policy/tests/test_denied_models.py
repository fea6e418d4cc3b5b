"""Models that a managed list blocks: as `matchDeniedModels` of the official SDK 0.3.330 answers, entry by entry."""

from __future__ import annotations

import pytest

from pilothouse_policy import match_denied_models

MODELS = [
    "opus",
    "sonnet",
    "haiku",
    "fable",
    "best",
    "default",
    "opusplan",
    "claude-opus-4-5",
    "claude-opus-4-5-20251101",
    "claude-opus-4-1-20250805",
    "claude-opus-4-20250514",
    "claude-opus-4",
    "claude-opus-4-0",
    "claude-sonnet-4-6",
    "claude-sonnet-4-5",
    "claude-3-5-haiku-20241022",
    "claude-3-5-haiku-latest",
    "claude-3-7-sonnet",
    "claude-3-opus-20240229",
    "claude-haiku-4-5@20251001",
    "claude-opus-4-5[1m]",
    "opus[1m]",
    "us.anthropic.claude-opus-4-5-20251101-v1:0",
    "anthropic.claude-opus-4-5-20251101-v1:0",
    "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-opus-4-5-v1:0",
    "claude-opus-4-5-fast",
    "claude-opus-5-5",
    "claude-opus-5",
    "claude-opus-55",
    "my-opus",
    "opus-custom",
    "anthropic/claude-opus-4-5",
    "claude-opus-latest",
    "claude-fable-1",
    " opus",
    "OPUS",
    "gpt-4",
    "gpt-4o",
]
# Recorded from the official SDK: the models that each entry blocks, by their place in the list.
BLOCKED: dict[str, list[int]] = {
    "opus": [0, 7, 8, 9, 10, 11, 12, 18, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 34, 35],
    "haiku": [2, 15, 16, 19],
    "fable": [3, 33],
    "claude-opus-4": [7, 8, 9, 10, 11, 12, 20, 22, 23, 24, 25, 31],
    "claude-opus-4-5": [7, 8, 20, 22, 23, 24, 25, 31],
    "claude-opus-4-20250514": [7, 8, 9, 10, 11, 12, 20, 22, 23, 24, 25, 31],
    "claude-opus-4-0": [10, 11, 12],
    "claude-3-5-haiku": [15, 16],
    "claude-3-5-haiku-latest": [15, 16],
    "claude-3-7-sonnet": [17],
    "claude-3-opus": [18],
    "claude-haiku-4-5@20251001": [19],
    "claude-opus-5": [26, 27],
    "claude-opus-5-5": [26],
    "claude-opus-4-5-fast": [7, 8, 20, 22, 23, 24, 25, 31],
    "anthropic.claude-opus-4-5-20251101-v1:0": [7, 8, 20, 22, 23, 24, 25, 31],
    "us.anthropic.claude-opus-4-5-v1:0": [7, 8, 20, 22, 23, 24, 25, 31],
    "my-opus": [29],
    "claude-opus-latest": [32],
    "opus-4-5": [7, 8, 20, 22, 23, 24, 25, 31],
    "claude-sonnet": [],
    "claude-opus-4-9": [],
    "sonnet-4": [13, 14],
    "claude-opus-4-5-v1": [7, 8, 20, 22, 23, 24, 25, 31],
    "claude-opus-4-5-preview": [],
    "best": [],
    "default": [],
    "": [],
    "*": [],
    "sonnet[1m]": [1, 13, 14, 17],
    "claude-opus-4-5[1m]": [7, 8, 20, 22, 23, 24, 25, 31],
    " opus ": [0, 7, 8, 9, 10, 11, 12, 18, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 34, 35],
}


@pytest.mark.parametrize("entry", BLOCKED)
def test_an_entry_blocks_what_the_official_sdk_says(entry: str) -> None:
    denied = match_denied_models(MODELS, [entry]).denied
    assert [place for place, is_denied in enumerate(denied) if is_denied] == BLOCKED[entry]


def test_a_list_blocks_what_one_of_its_entries_blocks() -> None:
    found = match_denied_models(
        ["opus", "claude-haiku-4-5", "claude-sonnet-4-5"], ["haiku", "claude-sonnet-4-6", "opus"]
    )
    assert (found.denied, found.warnings) == ([True, True, False], [])
    assert match_denied_models(["opus"], None).denied == [False]


@pytest.mark.parametrize(
    ("entry", "words"),
    [("best", "from release to release"), ("", "blocks nothing"), ("claude-*", "exactly this name"), ("opus", "")],
)
def test_an_entry_that_blocks_less_than_one_may_expect_is_explained(entry: str, words: str) -> None:
    warnings = match_denied_models([], [entry]).warnings
    assert len(warnings) == bool(words)
    assert all(words in warning for warning in warnings)
