"""Claude Code on another machine, reached through ssh: the local transport with another command.

python over_ssh.py user@host /srv/project "What does this project do?"

Needs a login by key on that machine (`ssh user@host true` asks for nothing), and `claude` installed there, with its
own key or login: the environment of this process stays here.

Nothing is left over there. The ssh server does not end what it has started when the connection breaks, and at that
moment Claude Code may be in the middle of a turn. So a few lines of shell run beside it, look once a second whether
the server still serves this connection, and end Claude Code and what it has started when it does not.
"""

import asyncio
import shlex
import shutil
import sys

import msgspec

import pilothouse as ph
from pilothouse.options import Invocation
from pilothouse.transports import CliTransport

# Arguments: the directory, and the command. The server has made the shell the leader of a process group of its own.
SUPERVISE = """
cd "$1" || exit 1
shift
server=$PPID
exec 3<&0
"$@" <&3 3<&- &
child=$!
exec 3<&- </dev/null
(
    trap "" TERM
    kill -0 "$server" || exit
    while kill -0 "$server"; do sleep 1; done
    kill -TERM "-$$" || kill -TERM "$child"
    sleep 5
    kill -KILL "-$$" || kill -KILL "$child"
) </dev/null >/dev/null 2>&1 &
watch=$!
wait "$child"
code=$?
kill -KILL "$watch"
exit "$code"
"""


class SshTransport(CliTransport):
    def __init__(self, host: str, directory: str, command: str = "claude") -> None:
        super().__init__()
        self._host = host
        self._directory = directory
        self._command = command

    async def start(self, invocation: Invocation) -> None:
        if invocation.files:
            raise ph.UsageError("over ssh, options that travel in files (long prompts, mcp_servers …) do not work")
        # A shell reads it on the other side, so every word is quoted.
        words = [*shlex.split(self._command), *invocation.argv, *invocation.trailing_args]
        remote = shlex.join(["exec", "sh", "-c", SUPERVISE, "sh", self._directory, *words])
        ssh = shutil.which("ssh") or "ssh"
        await super().start(msgspec.structs.replace(invocation, cli=ssh, argv=(self._host, remote), trailing_args=()))


async def main(host: str, directory: str, prompt: str, command: str = "claude") -> None:
    result = await ph.query(prompt, transport=SshTransport(host, directory, command), tools=[])
    result.raise_for_error()
    print(result.text)


asyncio.run(main(*sys.argv[1:]))
