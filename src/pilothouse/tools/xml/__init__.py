"""Tools called in text, without MCP: the protocol, and the parser of replies.

Owns nothing itself. Imported only when that bridge is used.
"""

from pilothouse.tools.xml.declare import declare as declare
from pilothouse.tools.xml.declare import declare_tools as declare_tools
from pilothouse.tools.xml.events import Event as Event
from pilothouse.tools.xml.events import Finish as Finish
from pilothouse.tools.xml.events import TextDelta as TextDelta
from pilothouse.tools.xml.events import ThinkingDelta as ThinkingDelta
from pilothouse.tools.xml.events import ToolCall as ToolCall
from pilothouse.tools.xml.events import ToolCallDelta as ToolCallDelta
from pilothouse.tools.xml.events import ToolCallError as ToolCallError
from pilothouse.tools.xml.events import ToolCallStart as ToolCallStart
from pilothouse.tools.xml.frames import Answer as Answer
from pilothouse.tools.xml.frames import call_frame as call_frame
from pilothouse.tools.xml.frames import result_frame as result_frame
from pilothouse.tools.xml.frames import results_content as results_content
from pilothouse.tools.xml.history import History as History
from pilothouse.tools.xml.history import history as history
from pilothouse.tools.xml.parser import StreamParser as StreamParser
from pilothouse.tools.xml.parser import merge as merge
from pilothouse.tools.xml.parser import parse as parse
from pilothouse.tools.xml.protocol import new_nonce as new_nonce
from pilothouse.tools.xml.protocol import system_prompt as system_prompt
from pilothouse.tools.xml.replies import Reply as Reply
from pilothouse.tools.xml.replies import ReplyReader as ReplyReader
from pilothouse.tools.xml.telling import Retracted as Retracted
