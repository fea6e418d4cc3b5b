"""The line editor of a conversation: history, completion, several lines. The only file that imports prompt_toolkit.

Owns the keys. The caller supplies the completions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from pilothouse_cli.chat_input import CONTINUATION, PROMPT, CtrlC, InterruptiblePrompt, Terminal

CompletionFunction = Callable[[str], Iterable[tuple[str, str]]]
"""Takes the text before the cursor; returns completions of its last word, with their descriptions."""


class EditorInput(InterruptiblePrompt):
    """Lines that the user edits in a terminal; `history` names the file that keeps them."""

    def __init__(
        self, notes: TextIO, terminal: Terminal, complete: CompletionFunction, history: str | None = None
    ) -> None:
        super().__init__()
        self._terminal = terminal
        self._typed = ""  # text typed before an interruption
        self._input = create_input(sys.stdin)
        kept: History = InMemoryHistory() if history is None else FileHistory(str(Path(history).expanduser()))
        # As arguments of `PromptSession`, they would turn off its form for dumb terminals.
        with create_app_session(input=self._input, output=create_output(stdout=notes)):
            self._prompts: PromptSession[str] = PromptSession(
                FormattedText([("bold", PROMPT)]),
                multiline=True,
                prompt_continuation="… ",
                history=kept,
                completer=_SlashCompleter(complete),
                complete_while_typing=True,
                reserve_space_for_menu=4,
                key_bindings=_make_key_bindings(),
                enable_suspend=True,
                enable_open_in_editor=True,
                interrupt_exception=CtrlC,
            )
            # A separate session: answers are not prompts, and do not belong in their history.
            self._answers: PromptSession[str] = PromptSession(interrupt_exception=CtrlC)

    async def read_prompt(self) -> str | None:
        """Return the next prompt; None for Ctrl-D. Raises `CtrlC` when the line is empty."""
        self._typed = ""
        return await self.read_interruptibly(self._read_prompt_text)

    async def _read_prompt_text(self) -> str | None:
        try:
            return await self._prompt_user(self._prompts, None, self._typed)
        finally:
            self._typed = self._prompts.default_buffer.text

    async def ask(self, question: str) -> str | None:
        """Return the answer to a question, typed after it was shown."""
        self._terminal.discard_typed()
        clear_typeahead(self._input)
        return await self._prompt_user(self._answers, question, "")

    async def _prompt_user(self, session: PromptSession[str], message: str | None, typed: str) -> str | None:
        with self._terminal.enable_echo():
            try:
                # The chat handles signals; Ctrl-C arrives as a key here.
                return await session.prompt_async(
                    message, default=typed, handle_sigint=False, set_exception_handler=False
                )
            except EOFError:
                return None


def _make_key_bindings() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        state = buffer.complete_state
        if state is not None and state.current_completion is not None:
            buffer.complete_state = None  # the completion is already in the line
        if buffer.document.current_line_before_cursor.endswith(CONTINUATION):
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
            # A reset would remove the history until the next redraw: an arrow key that arrives together with this key
            # would not find any.
            buffer.go_to_history(len(buffer.history.get_strings()))
            buffer.text = ""
        else:
            event.app.exit(exception=CtrlC())

    return keys


class _SlashCompleter(Completer):
    def __init__(self, complete: CompletionFunction) -> None:
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        word = before.rpartition(" ")[2]
        for text, meaning in self._complete(before):
            yield Completion(text, start_position=-len(word), display_meta=meaning)
