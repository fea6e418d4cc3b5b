"""Transcripts on disk, where the CLI keeps its sessions: list, read, search, change and count them.

All functions block on the disk and keep no state: call them from any thread. Nothing here starts a process or an
event loop, or knows how a CLI is run. Start reading at `rows.py` (the lines) and `conversation.py` (their order).
"""

from pilothouse_transcripts.conversation import get_session_messages as get_session_messages
from pilothouse_transcripts.conversation import get_subagent_messages as get_subagent_messages
from pilothouse_transcripts.conversation import list_subagents as list_subagents
from pilothouse_transcripts.edits import ForkSessionResult as ForkSessionResult
from pilothouse_transcripts.edits import archive_session as archive_session
from pilothouse_transcripts.edits import delete_session as delete_session
from pilothouse_transcripts.edits import fork_session as fork_session
from pilothouse_transcripts.edits import rename_session as rename_session
from pilothouse_transcripts.edits import tag_session as tag_session
from pilothouse_transcripts.edits import unarchive_session as unarchive_session
from pilothouse_transcripts.export import export_session as export_session
from pilothouse_transcripts.history import HistoryMessage as HistoryMessage
from pilothouse_transcripts.history import write_history as write_history
from pilothouse_transcripts.paths import project_key as project_key
from pilothouse_transcripts.rows import TranscriptProblem as TranscriptProblem
from pilothouse_transcripts.search import SearchHit as SearchHit
from pilothouse_transcripts.search import search_sessions as search_sessions
from pilothouse_transcripts.session_info import SessionInfo as SessionInfo
from pilothouse_transcripts.session_info import get_session_info as get_session_info
from pilothouse_transcripts.session_info import list_sessions as list_sessions
from pilothouse_transcripts.usage import SessionUsageTotals as SessionUsageTotals
from pilothouse_transcripts.usage import UsageReport as UsageReport
from pilothouse_transcripts.usage import UsageTotals as UsageTotals
from pilothouse_transcripts.usage import usage_report as usage_report
