"""A directory for each run, made from git or copied, and the files that are saved from it."""
