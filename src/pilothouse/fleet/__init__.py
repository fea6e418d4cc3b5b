"""Many runs at once: limits, a journal that survives crashes, and the runners that do the work."""

from pilothouse.fleet.feeding import Runs as Runs
from pilothouse.fleet.fleet import Fleet as Fleet
from pilothouse.fleet.journal import Beat as Beat
from pilothouse.fleet.journal import FleetJournalError as FleetJournalError
from pilothouse.fleet.journal import Journal as Journal
from pilothouse.fleet.memory_journal import MemoryJournal as MemoryJournal
from pilothouse.fleet.rate import Rate as Rate
from pilothouse.fleet.run import FleetStatus as FleetStatus
from pilothouse.fleet.run import Run as Run
from pilothouse.fleet.runner import AgentRunner as AgentRunner
from pilothouse.fleet.runner import Attempt as Attempt
from pilothouse.fleet.runner import Runner as Runner
from pilothouse.fleet.sqlite_journal import SqliteJournal as SqliteJournal
from pilothouse.fleet.writing import RunWriter as RunWriter
from pilothouse.fleet.writing import run_row as run_row
