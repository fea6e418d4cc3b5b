"""The journal of runs, and runs as rows of a table."""
