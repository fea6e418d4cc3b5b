"""The engine that answers without the CLI, over the Messages API. It speaks the CLI's wire."""

from pilothouse.native.transport import NativeTransport as NativeTransport
