"""Rows of the table: limits, the conversation, the account, the place and the configuration of the child."""

from __future__ import annotations

from pilothouse.options import kinds, parts
from pilothouse.options.option import Option, is_no_more, tunes
from pilothouse.options.targets import (
    Config,
    EnvSwitch,
    EnvVar,
    Flag,
    Json,
    Parts,
    PathFlag,
    Repeated,
    Sdk,
    Switch,
    SwitchOrFlag,
)

DEFAULT_MAX_LINE_BYTES = 64 * 1024 * 1024
DEFAULT_USAGE_LIMIT_CEILING = 6 * 3600.0  # seconds: the shortest window of a plan takes five hours
DEFAULT_LOAD_TIMEOUT = 60.0  # seconds for one answer of a session store: a long session from far away takes a few
DEFAULT_SESSION_LEASE = 60.0  # seconds: longer than a pause of the network, shorter than the patience of a user
DEFAULT_CONTROL_TIMEOUT = 60.0  # seconds; the CLI answers in under a second, a cold disk may take ten

LIMITS = (
    Option(
        "max_turns", kinds.COUNT, Flag("max-turns"), "Stop after this many turns of the model.", untrusted=is_no_more
    ),
    Option(
        "max_budget_usd",
        kinds.NUMBER,
        Flag("max-budget-usd"),
        "Stop when the estimated cost passes this many US dollars.",
        untrusted=is_no_more,
    ),
    Option(
        "max_budget_tokens",
        kinds.COUNT,
        Sdk(),
        "Stop when more tokens are used than this, input and output of all models; in a session, by all queries.",
        untrusted=is_no_more,
    ),
    Option(
        "until",
        kinds.UNTIL,
        Sdk(),
        "When a query is over: with its result, or 'idle': when nothing in the background is left to wake the model.",
        default="result",
        untrusted=tunes,
    ),
    Option(
        "timeout",
        kinds.TIMEOUT,
        Sdk(),
        "Seconds until a query fails with QueryTimeout. No limit by default.",
        untrusted=is_no_more,
    ),
    Option(
        "idle_timeout",
        kinds.TIMEOUT,
        Sdk(),
        "Seconds of silence until a query fails with QueryTimeout; not counted while a tool runs. No limit by default.",
        untrusted=is_no_more,
    ),
    Option(
        "startup_timeout",
        kinds.TIMEOUT,
        Sdk(),
        "The same until the first message, in place of `idle_timeout`, which holds there too if this is not set.",
        untrusted=is_no_more,
    ),
    Option(
        "control_timeout",
        kinds.TIMEOUT,
        Sdk(),
        "Seconds to wait for the answer to a control request, the handshake included.",
        default=DEFAULT_CONTROL_TIMEOUT,
        untrusted=tunes,
    ),
    Option(
        "max_line_bytes",
        kinds.COUNT,
        Sdk(),
        "Longest line of output, in bytes; a longer one is skipped and reported.",
        default=DEFAULT_MAX_LINE_BYTES,
    ),
    Option(
        "api_max_retries",
        kinds.WHOLE,
        EnvVar("CLAUDE_CODE_MAX_RETRIES"),
        "How often the CLI repeats a request that the API refused for the moment; 10 if it is not said.",
        untrusted=is_no_more,
    ),
    Option(
        "retry",
        kinds.RETRY,
        Sdk(),
        "How often a query is tried again after the CLI has given up, or a RetryPolicy. Not at all by default: the CLI "
        "has repeated the request by itself (`api_max_retries`).",
        untrusted=tunes,
    ),
    Option(
        "on_usage_limit",
        kinds.ON_LIMIT,
        Sdk(),
        "What happens when a usage limit is reached: the query fails, or 'wait': it goes on when the limit resets.",
        default="raise",
        untrusted=tunes,
    ),
    Option(
        "usage_limit_ceiling",
        kinds.SECONDS,
        Sdk(),
        "Seconds that a query waits for usage limits at most; one that resets later makes it fail at once.",
        default=DEFAULT_USAGE_LIMIT_CEILING,
        untrusted=is_no_more,
    ),
)

CONVERSATION = (
    Option("resume", kinds.NAME, Flag("resume"), "Id of a session to continue."),
    Option(
        "continue_conversation",
        kinds.BOOL,
        Switch("continue"),
        "Continue the latest session of the directory.",
        default=False,
    ),
    Option(
        "fork_session",
        kinds.BOOL,
        Switch("fork-session"),
        "Resume into a new session and leave the old one as it was.",
        default=False,
    ),
    Option(
        "session_id",
        kinds.UUID,
        Flag("session-id"),
        "Id for the new session. With `resume`, `fork_session` makes one.",
    ),
    Option(
        "resume_session_at",
        kinds.NAME,
        Flag("resume-session-at"),
        "With `resume`: the uuid of the last message to keep.",
    ),
    Option(
        "resume_drops_turn",
        kinds.TEXT,
        Flag("resume-drops-turn"),
        "With `resume_session_at`: the uuid of the prompt whose turn is given up.",
    ),
    Option("title", kinds.NAME, Flag("name"), "Title of the session, as lists of sessions show it."),
    Option(
        "persist_session",
        kinds.BOOL,
        Switch("no-session-persistence", on=False),
        "Whether the CLI writes the session to disk.",
        default=True,
    ),
    Option(
        "session_store",
        kinds.STORE,
        Parts(parts.mirrored, (parts.SESSION_MIRROR,)),
        "Where transcripts are kept beside the disk of this machine, and where `resume` looks for them first.",
        in_files=False,
    ),
    Option(
        "session_store_flush",
        kinds.STORE_FLUSH,
        Sdk(),
        "When the store gets what was said: in batches, at the end of a turn at the latest, or 'eager': at once.",
        default="batched",
    ),
    Option(
        "load_timeout",
        kinds.SECONDS,
        Sdk(),
        "Seconds to wait for an answer of the store when a session is resumed.",
        default=DEFAULT_LOAD_TIMEOUT,
        untrusted=tunes,
    ),
    Option(
        "session_lease",
        kinds.SECONDS,
        Sdk(),
        "Seconds after which another host may take over a session in the store whose host has died.",
        default=DEFAULT_SESSION_LEASE,
    ),
    Option(
        "restart",
        kinds.RESTART,
        Sdk(),
        "What a session does after its child died: the next query resumes in a new child, or 'never'.",
        default="resume",
    ),
    Option(
        "enable_file_checkpointing",
        kinds.BOOL,
        EnvSwitch("CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING", "true"),
        "Keep what files were before each turn, so that they can be brought back.",
        default=False,
    ),
)

ACCOUNT = (
    Option(
        "api_key",
        kinds.NAME,
        EnvVar("ANTHROPIC_API_KEY"),
        "API key; reaches the child through its environment.",
        secret=True,
        in_files=False,
    ),
    Option(
        "auth_token",
        kinds.NAME,
        EnvVar("ANTHROPIC_AUTH_TOKEN"),
        "Bearer token for a gateway; reaches the child through its environment.",
        secret=True,
        in_files=False,
    ),
    Option(
        "oauth_token",
        kinds.NAME,
        EnvVar("CLAUDE_CODE_OAUTH_TOKEN"),
        "Long-lived token of `claude setup-token`; reaches the child through its environment.",
        secret=True,
        in_files=False,
    ),
    Option("base_url", kinds.URL, EnvVar("ANTHROPIC_BASE_URL"), "Address of the API, if it is not the usual one."),
    Option(
        "provider",
        kinds.PROVIDER,
        Parts(parts.provider, tuple(parts.PROVIDER_VARIABLES.values())),
        "Whose API it is. The credentials for the clouds come from the environment.",
    ),
)

PLACE = (
    Option("cwd", kinds.PATH, Sdk(), "Working directory of the child. By default that of this process."),
    Option("add_dirs", kinds.PATHS, Repeated("add-dir"), "Further directories that tools may use."),
    Option(
        "project_config_root",
        kinds.PATH,
        PathFlag("project-config-root"),
        "The checkout whose project settings count, where `cwd` is a worktree of it.",
    ),
    Option(
        "cli",
        kinds.CLI,
        Sdk(),
        "Which `claude` to run: 'auto', 'bundled' (the copy that pilothouse keeps), 'global' (PATH), or a path.",
        default="auto",
    ),
    Option(
        "user",
        kinds.USER,
        Sdk(),
        "User of this system to run the child as; only root may. Its HOME stays as it is: set it in `env`.",
    ),
    Option("env", kinds.ENV, Sdk(), "Environment variables to set for the child; None removes one.", secret=True),
    Option("inherit_env", kinds.BOOL, Sdk(), "Start from the environment of this process.", default=True),
    Option(
        "isolation",
        kinds.ISOLATION,
        Sdk(),
        "'strict': a HOME and a configuration of its own that go with the child, no settings files, MCP servers only "
        "from `mcp_servers`, and of the environment only what is on a list.",
    ),
    Option(
        "config_dir",
        kinds.PATH,
        EnvVar("CLAUDE_CONFIG_DIR", path=True),
        "Directory of the CLI for its settings, login and sessions; `~/.claude` by default.",
    ),
    Option(
        "nonessential_traffic",
        kinds.BOOL,
        EnvSwitch("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", on=False),
        "Whether the CLI may talk to the network about more than the question: updates, telemetry, error reports.",
        default=True,
    ),
    Option(
        "client_app",
        kinds.NAME,
        EnvVar("CLAUDE_AGENT_SDK_CLIENT_APP"),
        "Name of your program, such as 'my-app/1.0'; the CLI tells it to the API.",
    ),
    Option("transport", kinds.TRANSPORT, Sdk(), "Another way to reach the peer than a local child.", in_files=False),
)

CONFIGURATION = (
    Option("settings", kinds.CONFIG, Config("settings"), "Settings for the CLI: a mapping, a path, or JSON text."),
    Option(
        "managed_settings",
        kinds.MAPPING,
        Json(
            "managed-settings",
            "managedSettings",
            private=True,
            switches=("managed-settings-in-initialize", "await-initialize"),
        ),
        "Settings that restrict, as an administrator sets them: other settings cannot loosen them.",
    ),
    Option(
        "setting_sources",
        kinds.SOURCE_LIST,
        Flag("setting-sources"),
        "Which settings files to load; [] for none of them.",
    ),
    Option(
        "plugins",
        kinds.PLUGINS,
        Parts(parts.structs, parts.PLUGIN_TARGETS),
        "Plugins for this session: paths, or Plugins.",
    ),
    Option(
        "bare",
        kinds.BOOL,
        Switch("bare"),
        "Fastest start: no hooks, plugins, memory or login; needs an API key.",
        default=False,
    ),
    Option(
        "safe_mode",
        kinds.BOOL,
        Switch("safe-mode"),
        "Start without anything that was customised: memory, skills, plugins, hooks, MCP servers, agents.",
        default=False,
    ),
    Option("extra_args", kinds.EXTRA, Sdk(), "Flags of the CLI that have no option here."),
)

DIAGNOSIS = (
    Option(
        "instrumentation",
        kinds.INSTRUMENTATION,
        Sdk(),
        "What watches queries, such as OpenTelemetry(): one Instrumentation, or a list of them.",
        in_files=False,
    ),
    Option(
        "stderr", kinds.CALLABLE, Sdk(), "Called with every line the child writes to standard error.", in_files=False
    ),
    Option(
        "debug",
        kinds.DEBUG,
        SwitchOrFlag("debug"),
        "Let the CLI write a debug log: True, or the categories to log, such as 'api,mcp'.",
        default=False,
    ),
    Option("debug_file", kinds.PATH, PathFlag("debug-file"), "File for the debug log; switches it on."),
)
