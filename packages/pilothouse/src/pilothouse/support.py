"""For makers of packages on top of pilothouse: what they share with it, and the packages beside it use.

Programs need none of it. A name here may change with any release, so a package that uses one pins the version of
pilothouse exactly, as the packages of this repository do.

- JSON: `encode_json` (bytes, also of odd text), `decode_line`, `to_json_values`
- media: `sniff_media_type` (the type of an image or a sound, by its first bytes)
- tasks: `spawn` (work on the running loop, beside a query)
- blocking work: `run_blocking` (short work, in a thread), `run_cancellable` (long work, which checks whether it may go
  on), `LoopCondition` (to wait on several event loops), `make_loop_caller` (to call back into this event loop from a
  thread), `get_portal` and `make_blocking` (for blocking twins)
- secrets: `secret_values` of options, `invocation_secrets` of a child, `Redactor`, `mask`, `MASK`
- files: `lock_file`, `cache_root`
- programs: `find_program` (on PATH, never in the working directory), `parse_version` (of the CLI, to compare it),
  `find_key` and `get_claude_directory` (what the CLI would find)
- packages: `copy_method_signature`, `hide_arguments` (of functions that take keys), `user_class` (hints for mistakes),
  `find_similar_name`, `make_lazy_exports` (names that a package loads on first use)
"""

from pilothouse.engine.tasks import spawn as spawn
from pilothouse.hints import find_similar_name as find_similar_name
from pilothouse.lazy_exports import make_lazy_exports as make_lazy_exports
from pilothouse.media import sniff_media_type as sniff_media_type
from pilothouse.messages.base import to_json_values as to_json_values
from pilothouse.messages.json_lines import decode_line as decode_line
from pilothouse.messages.json_lines import encode_json as encode_json
from pilothouse.options.options import copy_method_signature as copy_method_signature
from pilothouse.options.secrets import MASK as MASK
from pilothouse.options.secrets import Redactor as Redactor
from pilothouse.options.secrets import invocation_secrets as invocation_secrets
from pilothouse.options.secrets import mask as mask
from pilothouse.options.secrets import secret_values as secret_values
from pilothouse.provision.artifacts import cache_root as cache_root
from pilothouse.provision.file_lock import lock_file as lock_file
from pilothouse.sync.portal import get_portal as get_portal
from pilothouse.sync.portal import make_blocking as make_blocking
from pilothouse.tracebacks import hide_arguments as hide_arguments
from pilothouse.tracebacks import user_class as user_class
from pilothouse.transports.concurrency import LoopCondition as LoopCondition
from pilothouse.transports.concurrency import make_loop_caller as make_loop_caller
from pilothouse.transports.concurrency import run_blocking as run_blocking
from pilothouse.transports.concurrency import run_cancellable as run_cancellable
from pilothouse.transports.discovery import find_key as find_key
from pilothouse.transports.discovery import find_program as find_program
from pilothouse.transports.discovery import get_claude_directory as get_claude_directory
from pilothouse.transports.discovery import parse_version as parse_version
