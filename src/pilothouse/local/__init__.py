"""A small open model on this machine, for the times when there is no key and no login."""

from pilothouse.local.model import LocalModel as LocalModel
