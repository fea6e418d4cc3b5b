"""A small open model on this machine, for use without a key or a login.

Owns its process and its Messages API. Must not know how the model file is fetched. Start with `model`.
"""

from pilothouse_models.local.model import LocalModel as LocalModel
