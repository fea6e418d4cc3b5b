"""The environment of a hermetic `claude` child: nothing of the machine's own login, keys, config or home.

Owns which variables make a run hermetic. Starts nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

FAKE_KEY = "sk-ant-scripted-model-no-real-key"
# Off: telemetry, update checks, error reports, and whatever else the CLI would ask the network for.
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
POSIX_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
# Windows programs do not start without these.
WINDOWS_KEPT = ("COMSPEC", "PATHEXT", "SYSTEMDRIVE", "SYSTEMROOT", "WINDIR", "PATH")


def hermetic_environment(
    home: str | Path, *, base_url: str, api_key: str = FAKE_KEY, max_retries: int = 2, **extra: str
) -> dict[str, str]:
    """The complete environment of a hermetic child.

    Args:
        home: a directory of your own for HOME; its `.claude` becomes the CLI's configuration directory.
        base_url: where the Messages API is.
        api_key: a key that may be seen.
        max_retries: how often the CLI retries a failed request; the waits grow from about 0.5 s.
        **extra: more variables; they win.

    Example:
        >>> env = hermetic_environment("/tmp/h", base_url="http://127.0.0.1:1", max_retries=0)
        >>> env["ANTHROPIC_BASE_URL"], env["CLAUDE_CODE_MAX_RETRIES"]
        ('http://127.0.0.1:1', '0')
    """
    home = Path(home)
    env = {
        **QUIET,
        "ANTHROPIC_API_KEY": api_key,
        "ANTHROPIC_BASE_URL": base_url,
        "CLAUDE_CODE_MAX_RETRIES": str(max_retries),
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "NO_PROXY": "127.0.0.1,localhost",
        "TMPDIR": str(home / "tmp"),
    }
    if sys.platform == "win32":
        env |= {name: os.environ[name] for name in WINDOWS_KEPT if name in os.environ}
        env["USERPROFILE"] = str(home)
    else:
        env["PATH"] = POSIX_PATH
        if os.getuid() == 0:
            # The CLI refuses some permission modes to root unless it is told that this is a sandbox.
            env["IS_SANDBOX"] = "1"
    return env | extra
