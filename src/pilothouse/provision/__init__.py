"""Files that pilothouse needs and does not ship: fetched with the user's own package client, verified, cached.

`provision.cli` has the pinned Claude Code executable, `provision.model` the embedded open model. Both are cheap to
import; the code that fetches (`fetch`, `clients`, `archives`) is imported when something has to be fetched. Nothing
here knows of options, transports or the wire, and nothing here names a registry: the package client does.
"""
