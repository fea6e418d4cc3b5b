"""The Agent Client Protocol: an agent for editors such as Zed, the IDEs of JetBrains, and Neovim.

Owns what an editor sees and decides of a session. `updates` and `questions` are tables without I/O, `session` is one
session, `agent` the requests of the protocol. Only `agent` needs the library `agent-client-protocol`; import it first.
"""

from pilothouse_doors.acp.session import Conversations as Conversations
