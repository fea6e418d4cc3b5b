"""Journals of runs: the protocol, and implementations in memory and in a SQLite file."""
