"""`python -m pilothouse.native`: the same as `pilothouse-agent`."""

import sys

from pilothouse.native.program import main

sys.exit(main())
