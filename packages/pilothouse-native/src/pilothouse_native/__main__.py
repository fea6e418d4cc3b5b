"""`python -m pilothouse_native`: the same as `pilothouse-agent`."""

import sys

from pilothouse_native.program import main

sys.exit(main())
