"""Run many prompts at once, with limits, retries, and a journal that survives crashes.

Owns scheduling, journals, workspaces and the runners that execute attempts. Uses `Agent` as any caller does and knows
nothing of the CLI or its protocol.
Start reading at `fleet.py` (the API), then `scheduler.py`.
"""

from pilothouse.fleet.fleet import Fleet as Fleet
from pilothouse.fleet.journals.base import FleetJournalError as FleetJournalError
from pilothouse.fleet.journals.base import HeartbeatResult as HeartbeatResult
from pilothouse.fleet.journals.base import Journal as Journal
from pilothouse.fleet.journals.base import MemoryJournal as MemoryJournal
from pilothouse.fleet.journals.postgres import PostgresJournal as PostgresJournal
from pilothouse.fleet.journals.sqlite import SqliteJournal as SqliteJournal
from pilothouse.fleet.limits import Limits as Limits
from pilothouse.fleet.limits import Rate as Rate
from pilothouse.fleet.observers import AttemptEnd as AttemptEnd
from pilothouse.fleet.observers import AttemptObserver as AttemptObserver
from pilothouse.fleet.observers import FleetInstrumentation as FleetInstrumentation
from pilothouse.fleet.observers import FleetObserver as FleetObserver
from pilothouse.fleet.observers import FleetStart as FleetStart
from pilothouse.fleet.ray_runner import RayRunner as RayRunner
from pilothouse.fleet.results import Runs as Runs
from pilothouse.fleet.results import RunWriter as RunWriter
from pilothouse.fleet.results import run_row as run_row
from pilothouse.fleet.run import FleetStatus as FleetStatus
from pilothouse.fleet.run import Run as Run
from pilothouse.fleet.runner import AgentRunner as AgentRunner
from pilothouse.fleet.runner import Attempt as Attempt
from pilothouse.fleet.runner import Runner as Runner
from pilothouse.fleet.runner import WorkspaceRunner as WorkspaceRunner
from pilothouse.fleet.workspaces.artifacts import Artifacts as Artifacts
from pilothouse.fleet.workspaces.base import RunDirectory as RunDirectory
from pilothouse.fleet.workspaces.base import Workspace as Workspace
from pilothouse.fleet.workspaces.copies import CopiedDirectory as CopiedDirectory
from pilothouse.fleet.workspaces.git import GitWorktree as GitWorktree
