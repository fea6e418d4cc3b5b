"""The suites that say what a transport, a store or a runner has to do; subclass them in a test module of your own.

`TransportSuite`: the stream itself, with the peers of `MEMORY_PEERS` or `PEER_PROGRAMS`, or with your own.
`AgentSuite`: what lies above it: queries, sessions, hooks, permissions, tools, interrupts, the blocking twin.
`StoreSuite`: what every session store does. `StoreBackendSuite`: with compare-and-append, leases and many writers.
`RunnerSuite`: what does the work of a fleet's attempts.

They need pytest and its anyio plugin; `AgentSuite` needs the scripted model as well.
"""

from __future__ import annotations

from pilothouse.testing.agent_suite import AgentSuite as AgentSuite
from pilothouse.testing.runner_suite import RunnerSuite as RunnerSuite
from pilothouse.testing.store_backend_suite import StoreBackendSuite as StoreBackendSuite
from pilothouse.testing.store_suite import StoreSuite as StoreSuite
from pilothouse.testing.suite_peers import MEMORY_PEERS as MEMORY_PEERS
from pilothouse.testing.suite_peers import PEER_PROGRAMS as PEER_PROGRAMS
from pilothouse.testing.transport_suite import FLOOD_LINES as FLOOD_LINES
from pilothouse.testing.transport_suite import Behaviour as Behaviour
from pilothouse.testing.transport_suite import TransportSuite as TransportSuite
