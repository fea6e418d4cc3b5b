"""The line editor of a conversation: history, completion, several lines. The only file that imports prompt_toolkit.

Owns the keys. What can be completed, it is told.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from pilothouse.cli.chat_lines import CONTINUED, PROMPT, CtrlC, OneAtATime, Terminal

Suggest = Callable[[str], Iterable[tuple[str, str]]]
"""Given the text before the cursor: what its last word may become, and what that means."""


class EditorLines(OneAtATime):
    """Lines that are edited in a terminal.

    Args:
        notes: the terminal that it is drawn on.
        terminal: the one that is typed in.
        suggest: what can be completed.
        history: a file that keeps what was typed; None: nothing is kept.
    """

    def __init__(self, notes: TextIO, terminal: Terminal, suggest: Suggest, history: str | None = None) -> None:
        super().__init__()
        self._terminal = terminal
        self._begun = ""  # what was typed when something came between
        self._input = create_input(sys.stdin)
        output = create_output(stdout=notes)
        kept: History = InMemoryHistory() if history is None else FileHistory(str(Path(history).expanduser()))
        common: dict[str, Any] = {"input": self._input, "output": output, "interrupt_exception": CtrlC}
        self._prompts: PromptSession[str] = PromptSession(
            FormattedText([("bold", PROMPT)]),
            multiline=True,
            prompt_continuation="… ",
            history=kept,
            completer=_Slashes(suggest),
            complete_while_typing=True,
            reserve_space_for_menu=4,
            key_bindings=_keys(),
            enable_suspend=True,
            enable_open_in_editor=True,
            **common,
        )
        # Of its own: answers are no prompts, and do not belong in their history.
        self._answers: PromptSession[str] = PromptSession(**common)

    async def prompt(self) -> str | None:
        """The next thing to say; None for Ctrl-D. Raises `CtrlC` when the line is empty."""
        self._begun = ""
        return await self.prompting(self._prompt)

    async def _prompt(self) -> str | None:
        try:
            return await self._ask(self._prompts, None, self._begun)
        finally:
            self._begun = self._prompts.default_buffer.text

    async def answer(self, question: str) -> str | None:
        """The answer to a question, typed after it was shown."""
        self._terminal.forget_typed()
        clear_typeahead(self._input)
        return await self._ask(self._answers, question, "")

    async def _ask(self, session: PromptSession[str], message: str | None, begun: str) -> str | None:
        with self._terminal.echoing():
            try:
                # Signals belong to the chat; Ctrl-C comes as a key here.
                return await session.prompt_async(
                    message, default=begun, handle_sigint=False, set_exception_handler=False
                )
            except EOFError:
                return None


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        state = buffer.complete_state
        if state is not None and state.current_completion is not None:
            buffer.complete_state = None  # it stands in the line already
        if buffer.document.current_line_before_cursor.endswith(CONTINUED):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.text:
            # A reset would take the history away until the next time the screen is drawn: an arrow key that comes with
            # this one would find none.
            buffer.go_to_history(len(buffer.history.get_strings()))
            buffer.text = ""
        else:
            event.app.exit(exception=CtrlC())

    return keys


class _Slashes(Completer):
    def __init__(self, suggest: Suggest) -> None:
        self._suggest = suggest

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        word = before.rpartition(" ")[2]
        for text, meaning in self._suggest(before):
            yield Completion(text, start_position=-len(word), display_meta=meaning)
