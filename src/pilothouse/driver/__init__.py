"""The async driver: one task that owns a connection, and what other tasks use to talk to it."""

from pilothouse.driver.exchange import Exchange as Exchange
from pilothouse.driver.exchange import Limits as Limits
from pilothouse.driver.exchange import Outgoing as Outgoing
from pilothouse.driver.host import Host as Host
from pilothouse.driver.host import Tell as Tell
from pilothouse.driver.questions import Desk as Desk
from pilothouse.driver.tasks import caller_into_loop as caller_into_loop
from pilothouse.driver.tasks import spawn as spawn
