"""The program of `LocalModel`'s child: llama.cpp serving the Messages API on loopback.

The only file that imports xllamacpp. It imports nothing of pilothouse but `shim`, in the same directory, and is run
as a file. It is a process of its own because the library cannot stop a server, and because its log, threads and
memory go away with the process.

Standard input: one line of JSON with the settings; its end ends the process. Standard output: one line of JSON with
the address, once the model is ready. Standard error: the log of llama.cpp.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

ERRORS_ONLY = 1
"""Verbosity of llama.cpp: only errors go to standard error."""
SEED = 1
REPETITION_PENALTY = 0.8
"""The multiplier of llama.cpp's DRY sampler, as its authors recommend."""
THREADS = 1
"""Threads of llama.cpp, which spin while they wait for each other.

On two busy cores, two of them took 0.5 s per token and one took 0.01 s. One is fast enough for a model of this size.
"""


def main() -> None:
    """Serve until standard input ends."""
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    answer = _reserve_stdout()
    server = _serve(settings)
    url = _serve_shim(server.listening_address, settings)
    answer.write(json.dumps({"url": url}).encode() + b"\n")
    answer.close()
    sys.stdin.buffer.read()
    # Native threads may be busy with a response; no orderly shutdown is needed.
    os._exit(0)


def _reserve_stdout() -> BinaryIO:
    """Reserve standard output for the line with the address: output of native code goes to the log."""
    output = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(output, "wb")


def _serve_shim(url: str, settings: dict[str, Any]) -> str:
    """Serve the shim in front of `url`; returns the shim's own URL."""
    found = importlib.util.spec_from_file_location("shim", Path(__file__).with_name("shim.py"))
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    shim = module.Shim(url, calls_tools=settings["calls_tools"], max_tokens=settings["max_tokens"])
    threading.Thread(target=shim.serve_forever, name="shim", daemon=True).start()
    return shim.url


def _serve(settings: dict[str, Any]) -> Any:
    import xllamacpp  # pyright: ignore[reportMissingTypeStubs] - the extra [local]

    native: Any = xllamacpp
    params = native.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = {settings["name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]
    params.n_ctx = settings["context_size"]
    # One request at a time, and always the likeliest token, whatever temperature is requested: the same prompt gets
    # the same response.
    params.n_parallel = 1
    params.sampling.top_k = 1
    params.sampling.seed = SEED
    # Small models repeat themselves. This makes a token less likely the longer the repetition that it would continue; a
    # penalty on all repeated tokens makes this model forget the question.
    params.sampling.dry_multiplier = REPETITION_PENALTY
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    params.verbosity = ERRORS_ONLY
    params.ui = params.endpoint_slots = params.endpoint_props = False
    return native.Server(params)


if __name__ == "__main__":
    main()
