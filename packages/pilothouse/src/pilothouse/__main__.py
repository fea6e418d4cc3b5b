"""`python -m pilothouse`: the command, which the package pilothouse-cli brings."""

import sys
from importlib.metadata import entry_points


def main() -> object:
    """Run the command; without its package, say what to install."""
    for script in entry_points(group="console_scripts", name="pilothouse"):
        return script.load()()
    return "the command needs the package pilothouse-cli: pip install 'pilothouse[cli]'"


if __name__ == "__main__":
    sys.exit(main())  # pyright: ignore[reportArgumentType]
