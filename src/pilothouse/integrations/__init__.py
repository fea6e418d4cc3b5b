"""Other people's systems, one file each: built on the public API only, each with an extra of its own.

Nothing is imported here, so that no extra is needed for another.
"""
