"""Who may make a request, and how much of a server each owner may use: for every route that pilothouse offers.

Start with `owners`, which knows no HTTP::

    request → guard: Host, Origin, token, body ── Access (the owner) → the application
                                                    └── owners: Shares of children, connections, bytes

The guard is plain ASGI: this package needs no web framework. `on_behalf` starts the children of owners, by rules that
their options cannot loosen.
"""

from pilothouse_access.guard import RefusedRequestError as RefusedRequestError
from pilothouse_access.owners import OPERATOR as OPERATOR
from pilothouse_access.owners import Owner as Owner
