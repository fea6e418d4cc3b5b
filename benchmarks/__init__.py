"""Speed of pilothouse beside the incumbent and beside floors, in one run on one machine: `python -m benchmarks`."""
