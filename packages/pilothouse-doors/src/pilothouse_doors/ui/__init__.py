"""Front ends over HTTP: AG-UI and the UI message stream of Vercel's AI SDK, as routes for Starlette and FastAPI.

Owns the conversations that front ends talk to (`threads`), and a table of events for each protocol. Start with
`threads`; a protocol has its events and its route in one module, `history` reads the past, and `http` has what the
routes share. Needs Starlette, and no library of a protocol: events are plain dictionaries.
"""

from pilothouse_doors.ui.agui import agui_route as agui_route
from pilothouse_doors.ui.threads import FrontEndError as FrontEndError
from pilothouse_doors.ui.threads import Threads as Threads
from pilothouse_doors.ui.vercel import vercel_route as vercel_route
