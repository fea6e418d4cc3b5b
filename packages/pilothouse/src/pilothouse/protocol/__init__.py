"""The control protocol as a pure state machine: bytes in → messages and events out, calls in → bytes out.

Owns framing, repair of cut lines, envelopes, matching of requests and responses, and the stream validator. Must not
know I/O, time, threads or event loops. Start with `connection`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilothouse.lazy_exports import make_lazy_exports as make_lazy_exports
from pilothouse.messages.json_lines import decode_line as decode_line
from pilothouse.protocol.connection import Connection as Connection
from pilothouse.protocol.control_frames import ConnectionEvent as ConnectionEvent
from pilothouse.protocol.control_frames import ConnectionStats as ConnectionStats
from pilothouse.protocol.control_frames import ErrorReceived as ErrorReceived
from pilothouse.protocol.control_frames import InvalidFrame as InvalidFrame
from pilothouse.protocol.control_frames import LineTooLong as LineTooLong
from pilothouse.protocol.control_frames import NonJsonLine as NonJsonLine
from pilothouse.protocol.control_frames import OutputEnd as OutputEnd
from pilothouse.protocol.control_frames import RequestCancelled as RequestCancelled
from pilothouse.protocol.control_frames import RequestReceived as RequestReceived
from pilothouse.protocol.control_frames import ResponseReceived as ResponseReceived
from pilothouse.protocol.control_frames import cancel_line as cancel_line
from pilothouse.protocol.control_frames import encode_line as encode_line
from pilothouse.protocol.control_frames import error_line as error_line
from pilothouse.protocol.control_frames import request_line as request_line
from pilothouse.protocol.control_frames import success_line as success_line
from pilothouse.protocol.control_frames import user_message as user_message
from pilothouse.protocol.frame_reader import DEFAULT_MAX_LINE_BYTES as DEFAULT_MAX_LINE_BYTES
from pilothouse.protocol.frame_reader import CompleteLines as CompleteLines
from pilothouse.protocol.frame_reader import LineFramer as LineFramer

if TYPE_CHECKING:
    from pilothouse.protocol.validator import StreamFault as StreamFault
    from pilothouse.protocol.validator import StreamFaultKind as StreamFaultKind
    from pilothouse.protocol.validator import StreamValidator as StreamValidator
    from pilothouse.protocol.validator import ValidationReport as ValidationReport


# Loaded lazily: a query does not check its stream.
__getattr__, __dir__ = make_lazy_exports(
    __name__,
    {
        "validator": "StreamFault StreamFaultKind StreamValidator ValidationReport",
    },
)
