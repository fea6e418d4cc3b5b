"""Integrations with other systems, one each: built on the public API only, each with an extra of its own.

Owns the adapters; the rest of pilothouse must not know them. Start with `otel`. Imports nothing, so that no
integration needs the extra of another.
"""
