"""Run many prompts at once, with limits, retries, and a journal that survives crashes.

Owns scheduling, journals, workspaces and the runners that execute attempts. Uses `Agent` as any caller does and knows
nothing of the CLI or its protocol.
Start reading at `fleet.py` (the API), then `scheduler.py`.
"""

from pilothouse_fleet.durable import durable_query as durable_query
from pilothouse_fleet.fleet import Fleet as Fleet
from pilothouse_fleet.journals.sqlite import FleetJournalError as FleetJournalError
from pilothouse_fleet.journals.sqlite import FleetJournalInUseError as FleetJournalInUseError
from pilothouse_fleet.journals.sqlite import SqliteJournal as SqliteJournal
from pilothouse_fleet.limits import Limits as Limits
from pilothouse_fleet.limits import Rate as Rate
from pilothouse_fleet.observers import AttemptEnd as AttemptEnd
from pilothouse_fleet.observers import AttemptObserver as AttemptObserver
from pilothouse_fleet.observers import FleetInstrumentation as FleetInstrumentation
from pilothouse_fleet.observers import FleetObserver as FleetObserver
from pilothouse_fleet.observers import FleetStart as FleetStart
from pilothouse_fleet.ray_runner import RayRunner as RayRunner
from pilothouse_fleet.results import Runs as Runs
from pilothouse_fleet.results import RunWriter as RunWriter
from pilothouse_fleet.results import run_row as run_row
from pilothouse_fleet.run import FleetStatus as FleetStatus
from pilothouse_fleet.run import Run as Run
from pilothouse_fleet.runner import AgentRunner as AgentRunner
from pilothouse_fleet.runner import Attempt as Attempt
from pilothouse_fleet.runner import Runner as Runner
from pilothouse_fleet.runner import WorkspaceRunner as WorkspaceRunner
from pilothouse_fleet.workspaces.artifacts import Artifacts as Artifacts
from pilothouse_fleet.workspaces.base import RunDirectory as RunDirectory
from pilothouse_fleet.workspaces.base import Workspace as Workspace
from pilothouse_fleet.workspaces.copies import CopiedDirectory as CopiedDirectory
from pilothouse_fleet.workspaces.git import GitWorktree as GitWorktree
