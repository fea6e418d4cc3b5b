"""Children that are started before a query or session needs them.

`Pool` is a value of the option `transport`, for blocking code too. Start reading at `pool.py`; `warm_child.py` has the
task that starts one child and waits with it.
"""

from pilothouse_pool.pool import Pool as Pool
