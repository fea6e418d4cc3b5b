"""Where the runs of a fleet stand: the seam, and journals in memory, SQLite and PostgreSQL."""
