"""The wire as a pure state machine: bytes in → messages and events out, calls in → bytes out.

Owns framing, recovery, envelopes, correlation of questions and answers, and the stream validator. Must not know I/O,
time, threads or event loops.
"""

from pilothouse.protocol.connection import TRANSITIONS as TRANSITIONS
from pilothouse.protocol.connection import Call as Call
from pilothouse.protocol.connection import Connection as Connection
from pilothouse.protocol.connection import State as State
from pilothouse.protocol.envelopes import cancel_line as cancel_line
from pilothouse.protocol.envelopes import error_line as error_line
from pilothouse.protocol.envelopes import request_line as request_line
from pilothouse.protocol.envelopes import success_line as success_line
from pilothouse.protocol.envelopes import user_message as user_message
from pilothouse.protocol.events import BadLine as BadLine
from pilothouse.protocol.events import EndOfOutput as EndOfOutput
from pilothouse.protocol.events import Event as Event
from pilothouse.protocol.events import Inbound as Inbound
from pilothouse.protocol.events import Noise as Noise
from pilothouse.protocol.events import Oversize as Oversize
from pilothouse.protocol.events import Refusal as Refusal
from pilothouse.protocol.events import Reply as Reply
from pilothouse.protocol.events import Stats as Stats
from pilothouse.protocol.events import Withdrawn as Withdrawn
from pilothouse.protocol.framing import DEFAULT_MAX_LINE_BYTES as DEFAULT_MAX_LINE_BYTES
from pilothouse.protocol.framing import LineFramer as LineFramer
from pilothouse.protocol.jsontext import encode_line as encode_line
from pilothouse.protocol.validator import Fault as Fault
from pilothouse.protocol.validator import FaultKind as FaultKind
from pilothouse.protocol.validator import StreamValidator as StreamValidator
from pilothouse.protocol.validator import ValidationReport as ValidationReport
