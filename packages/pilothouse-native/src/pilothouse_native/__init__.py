"""The native engine: an agent over the Messages API that needs no CLI and speaks the CLI's wire format.

Owns its sessions, permissions and built-in tools. Must not know the engine or the client. Start reading in `engine`,
then `turn`.
"""

from pilothouse_native.transport import NativeTransport as NativeTransport
