"""A directory for each run, made from git or copied, and what is kept of its files."""
