"""Tool calls in text, without MCP.

Owns the prompt that explains the protocol, the format of calls and results, and the parser of replies. Imported only
when that bridge is used. The events are those of `pilothouse.events`. Must not know the bridges or the client. Start
reading in `parser`.
"""

from pilothouse_models.xml.parser import StreamParser as StreamParser
from pilothouse_models.xml.prompt import CallAnswer as CallAnswer
from pilothouse_models.xml.prompt import Conversation as Conversation
from pilothouse_models.xml.prompt import call_frame as call_frame
from pilothouse_models.xml.prompt import declare as declare
from pilothouse_models.xml.prompt import declare_tools as declare_tools
from pilothouse_models.xml.prompt import derive_nonce as derive_nonce
from pilothouse_models.xml.prompt import encode_turns as encode_turns
from pilothouse_models.xml.prompt import new_nonce as new_nonce
from pilothouse_models.xml.prompt import read_conversation as read_conversation
from pilothouse_models.xml.prompt import result_frame as result_frame
from pilothouse_models.xml.prompt import results_content as results_content
from pilothouse_models.xml.prompt import system_prompt as system_prompt
from pilothouse_models.xml.reply_reader import ParsedReply as ParsedReply
from pilothouse_models.xml.reply_reader import ReplyReader as ReplyReader
