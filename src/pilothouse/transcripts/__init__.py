"""Transcripts on disk: the files in which the CLI keeps its sessions, listed, read, searched, changed and counted.

All functions block, for as long as the disk takes, and hold no state: call them from any thread. Nothing here starts a
process or an event loop.
"""

from pilothouse.transcripts.changing import delete_session as delete_session
from pilothouse.transcripts.changing import rename_session as rename_session
from pilothouse.transcripts.changing import tag_session as tag_session
from pilothouse.transcripts.exporting import export_session as export_session
from pilothouse.transcripts.forking import ForkSessionResult as ForkSessionResult
from pilothouse.transcripts.forking import fork_session as fork_session
from pilothouse.transcripts.lines import TranscriptProblem as TranscriptProblem
from pilothouse.transcripts.listing import SessionInfo as SessionInfo
from pilothouse.transcripts.listing import get_session_info as get_session_info
from pilothouse.transcripts.listing import list_sessions as list_sessions
from pilothouse.transcripts.places import project_key as project_key
from pilothouse.transcripts.reading import get_session_messages as get_session_messages
from pilothouse.transcripts.reading import get_subagent_messages as get_subagent_messages
from pilothouse.transcripts.reading import list_subagents as list_subagents
from pilothouse.transcripts.searching import SearchHit as SearchHit
from pilothouse.transcripts.searching import search_sessions as search_sessions
from pilothouse.transcripts.spending import SessionSpending as SessionSpending
from pilothouse.transcripts.spending import Spending as Spending
from pilothouse.transcripts.spending import UsageReport as UsageReport
from pilothouse.transcripts.spending import usage_report as usage_report
