"""Speed of pilothouse beside the incumbent and beside floors, in one run on one machine. Start: `python -m benchmarks`."""
