"""Journals of runs: the protocol, and implementations in memory, SQLite and PostgreSQL."""
