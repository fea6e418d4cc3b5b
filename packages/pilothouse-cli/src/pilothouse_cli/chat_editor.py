"""The line editor of a conversation: history, completion, several lines. The only file that imports prompt_toolkit.

Owns the keys. The caller supplies the completions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import anyio
from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import ANSI, FormattedText, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.output.vt100 import Vt100_Output

from pilothouse_cli.chat_input import CONTINUATION, PROMPT, CtrlC, InterruptiblePrompt, Terminal
from pilothouse_cli.progress import shorten_text
from pilothouse_cli.screen import escape_invisible

STEERING_PROMPT = "+ "
"""Before the line that is open while an answer is written."""
REDRAW_SECONDS = 0.1

CompletionFunction = Callable[[str], Iterable[tuple[str, str]]]
"""Takes the text before the cursor; returns completions of its last word, with their descriptions."""


class EditorInput(InterruptiblePrompt):
    """Lines that the user edits in a terminal; `history` names the file that keeps them."""

    def __init__(
        self, notes: TextIO, terminal: Terminal, complete: CompletionFunction, history: str | None = None
    ) -> None:
        super().__init__()
        self._notes = notes
        self._terminal = terminal
        self._typed = ""  # text that is in the line when it opens
        self._typed_on = anyio.Event()
        self._sent: list[str] = []  # words of which it is not known yet what became of them
        self._render: Callable[[], str] | None = None
        self._rendered: StyleAndTextTuples = []
        self._next_render = 0.0  # a redraw of the line asks several times for what is above it
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
        output = create_output(stdout=notes)
        if isinstance(output, Vt100_Output):
            output.enable_cpr = False  # the response may come when other lines were printed
        with create_app_session(input=self._input, output=output):
            self._words: PromptSession[str] = PromptSession(
                self._show_above_words,
                multiline=True,
                prompt_continuation="… ",
                placeholder=FormattedText([("ansibrightblack", "words for Claude while it works")]),
                history=kept,
                key_bindings=_make_key_bindings(clears=False),
                enable_suspend=True,
                erase_when_done=True,
                refresh_interval=REDRAW_SECONDS,
                interrupt_exception=CtrlC,
            )
        self._words.default_buffer.on_text_changed += self._note_typing

    async def read_prompt(self) -> str | None:
        """Return the next prompt; None for Ctrl-D. Raises `CtrlC` when the line is empty."""
        line = await self.read_interruptibly(self._read_prompt_text)
        self._typed = ""
        return line

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

    # While an answer is written.

    async def read_words(self, take: Callable[[str], object], stop: Callable[[], object]) -> None:
        """Read lines until this is cancelled; a line that was not sent stays for the next prompt.

        Args:
            take: called with each line, and with "/exit" for Ctrl-D.
            stop: called for Ctrl-C.
        """

        def accept(buffer: Buffer) -> bool:
            if buffer.text.strip():
                take(buffer.text)
            return False  # the line is empty then

        async def read() -> None:
            self._words.default_buffer.accept_handler = accept
            while True:
                try:
                    await self._words.prompt_async(
                        default=self._typed, handle_sigint=False, set_exception_handler=False
                    )
                except CtrlC:
                    stop()
                except EOFError:
                    break
                finally:
                    self._typed = self._words.default_buffer.text
                    self._typed_on.set()
            take("/exit")
            await anyio.sleep_forever()

        await self.read_interruptibly(read)

    def put_back(self, lines: Iterable[str]) -> None:
        """Put lines that were not used into the line that is open for words, before its text, or opens next."""
        buffer = self._words.default_buffer
        if self._words.app.is_running:
            after = len(buffer.text) - buffer.cursor_position
            text = "\n".join(filter(None, (*lines, buffer.text)))
            buffer.document = Document(text, len(text) - after)
        else:
            self._typed = "\n".join(filter(None, (*lines, self._typed)))

    @property
    def is_typed_in(self) -> bool:
        """Whether there is a line that is not sent yet."""
        return self._words.app.is_running and bool(self._words.default_buffer.text)

    async def finish_line(self) -> None:
        """Wait until the line is sent or empty."""
        while self.is_typed_in:
            self._typed_on = anyio.Event()
            await self._typed_on.wait()

    def _note_typing(self, _: Buffer) -> None:
        self._typed_on.set()

    @contextmanager
    def show_sent(self, words: str) -> Generator[None]:
        """A block in which sent words are shown as waiting."""
        self._sent.append(words)
        self._words.app.invalidate()
        try:
            yield
        finally:
            self._sent.remove(words)
            self._words.app.invalidate()

    def print_above(self, text: str) -> None:
        """See `screen.BottomLine`."""
        if self._words.app.is_running:
            self._words.app.renderer.erase()
        self._notes.write(text)
        self._notes.flush()
        self._next_render = 0.0
        self._words.app.invalidate()

    def show(self, render: Callable[[], str] | None) -> None:
        """See `screen.BottomLine`."""
        if self._render is None or render is None:
            self._next_render = 0.0
        self._render = render  # what it returns now is shown by the next redraw, of which there are enough

    def _show_above_words(self) -> StyleAndTextTuples:
        if (now := time.monotonic()) >= self._next_render:
            self._next_render = now + REDRAW_SECONDS
            moving = "" if self._render is None else self._render().rstrip("\n")
            self._rendered = to_formatted_text(ANSI(f"{moving}\n")) if moving else []
        sent = "".join(f"{shorten_text(escape_invisible(words))} (sent)\n" for words in self._sent)
        return [*self._rendered, ("ansibrightblack", sent), ("bold", STEERING_PROMPT)]

    async def _prompt_user(self, session: PromptSession[str], message: str | None, typed: str) -> str | None:
        with self._terminal.enable_echo():
            try:
                # The chat handles signals; Ctrl-C arrives as a key here.
                return await session.prompt_async(
                    message, default=typed, handle_sigint=False, set_exception_handler=False
                )
            except EOFError:
                return None


def _make_key_bindings(*, clears: bool = True) -> KeyBindings:
    """Return the keys of a line; `clears`: Ctrl-C empties the line first."""
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
        if buffer.text and clears:
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
