"""Tool calls in text, without MCP.

Owns the prompt that explains the protocol, the format of calls and results, and the parser of replies. Imported only
when that bridge is used. The events are those of `pilothouse.events`. Must not know the bridges or the client. Start
reading in `parser`.
"""

from pilothouse.tools.xml.parser import StreamParser as StreamParser
from pilothouse.tools.xml.prompt import CallAnswer as CallAnswer
from pilothouse.tools.xml.prompt import EncodedHistory as EncodedHistory
from pilothouse.tools.xml.prompt import call_frame as call_frame
from pilothouse.tools.xml.prompt import declare as declare
from pilothouse.tools.xml.prompt import declare_tools as declare_tools
from pilothouse.tools.xml.prompt import encode_history as encode_history
from pilothouse.tools.xml.prompt import new_nonce as new_nonce
from pilothouse.tools.xml.prompt import result_frame as result_frame
from pilothouse.tools.xml.prompt import results_content as results_content
from pilothouse.tools.xml.prompt import system_prompt as system_prompt
from pilothouse.tools.xml.reply_reader import ParsedReply as ParsedReply
from pilothouse.tools.xml.reply_reader import ReplyReader as ReplyReader
