"""Decides which options of runs that other programs put into the journal are accepted. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from pilothouse.errors import OptionsError, UsageError
from pilothouse.fleet.run import Run
from pilothouse.options import TABLE, Options
from pilothouse.options.value_types import MODES_BY_PERMISSIVENESS, permits_more

AcceptedOptions = Collection[str] | Literal["all"]

_REQUEST_OPTIONS = frozenset(
    {
        "agent",
        "append_subagent_system_prompt",
        "append_system_prompt",
        "betas",
        "client_app",
        "continue_conversation",
        "cwd",
        "debug",
        "enable_file_checkpointing",
        "fork_session",
        "json_schema",
        "max_line_bytes",
        "per_task_stop_affordance",
        "permission_prompts",
        "persist_session",
        "plan_mode_instructions",
        "prompt_via",
        "restart",
        "resume",
        "resume_drops_turn",
        "resume_session_at",
        "session_id",
        "session_lease",
        "session_store_flush",
        "skills",
        "supported_dialog_kinds",
        "system_prompt",
        "title",
        "tool_bridge",
        "tool_config",
    }
)
"""Options that a run may set although an untrusted file may not: they define the request and the form of the answer.
"""
_RESTRICTING_OPTIONS = frozenset({"bare", "isolation", "restricted", "safe_mode"})
"""Options that a run may switch on, but not off."""


class RunOptionsPolicy:
    """Which options a fleet accepts from runs of other programs.

    Args:
        accepts: names of options accepted although they run, redirect or permit something; or "all".
        permission_mode: the highest permission mode; None: that of the worker's agent, or "default".
        starts_runs: whether this program starts runs; otherwise the settings of its own runs are not kept.

    Attributes:
        trusts_journal: whether all runs keep all their options, because the caller requested what is left in the
            journal.

    Raises:
        UsageError: there is no such option or mode.
    """

    def __init__(
        self, accepts: AcceptedOptions = (), permission_mode: str | None = None, *, starts_runs: bool = True
    ) -> None:
        names = set(TABLE) if accepts == "all" else {accepts} if isinstance(accepts, str) else set(accepts)
        if unknown := names - set(TABLE):
            raise UsageError(f"accepts: names of options, or 'all'; there is none called {min(unknown)!r}")
        if permission_mode is not None and permission_mode not in MODES_BY_PERMISSIVENESS:
            raise UsageError(
                f"max_permission_mode: expected one of {', '.join(MODES_BY_PERMISSIVENESS)}, got {permission_mode!r}"
            )
        self._accepts = names
        self._permission_mode = permission_mode
        self._starts_runs = starts_runs
        self._own_settings: dict[str, Mapping[str, Any]] = {}
        self.trusts_journal = False

    def register_own(self, runs: Iterable[Run]) -> None:
        """Register runs that this program adds: they keep their current options."""
        if self._starts_runs:
            self._own_settings |= {run.key: run.settings for run in runs if run.settings}

    def discard(self, key: str) -> None:
        """Forget the settings of an ended run."""
        self._own_settings.pop(key, None)

    def check(self, run: Run, get_worker_options: Callable[[], Options]) -> None:
        """Check the options of a run that is to start.

        Args:
            run: the run from the journal.
            get_worker_options: returns the options of the agent that executes it.

        Raises:
            OptionsError: an option is not accepted here.
        """
        if not run.settings or self.trusts_journal or self._own_settings.get(run.key) == run.settings:
            return
        given, own = Options.layer(**dict(run.settings)).as_dict(), get_worker_options().as_dict()
        for name, value in given.items():
            if name not in self._accepts and (why := self._explain_refusal(name, value, own)):
                raise OptionsError(
                    f"option {name!r} of run {run.key!r} does not hold here: {why}. Set it on the agent of the worker, "
                    f"or accept it from the journal: accepts=[{name!r}], --accept {name}",
                    option=name,
                )

    def _explain_refusal(self, name: str, value: Any, own: Mapping[str, Any]) -> str:
        """Return why an option is not accepted; "" if it is."""
        if value is None or (name in own and own[name] == value):
            return ""
        if name == "permission_mode":
            highest = self._permission_mode or own.get(name) or "default"
            return f"the worker goes up to {highest!r}" if permits_more(value, highest) else ""
        if name in _REQUEST_OPTIONS:
            return ""
        if name in _RESTRICTING_OPTIONS:
            return "" if value else "it gives back what the worker takes away"
        may_replace = TABLE[name].untrusted
        if may_replace is None:
            return "what runs, redirects or permits is the worker's own"
        return "" if name not in own or may_replace(value, own[name]) else "it loosens what the worker says"
