"""
Chats of other apps, in and out: bytes to conversations, and nothing else.

The package opens no file and knows no clock. A caller hands in a file's bytes and gets its
conversations one at a time, each whole or refused with its place and the reason::

    for record in read(chunks, name="conversations.json"):
        match record.outcome:
            case FormatError() as fault:
                print(fault)
            case conversation:
                store(conversation)
"""

from .detect import FORMATS, detect, read
from .faults import FormatError
from .neutral import Conversation, ImportedMessage, text_of, validate
from .reading import Format, Record

__all__ = [
    "FORMATS",
    "Conversation",
    "Format",
    "FormatError",
    "ImportedMessage",
    "Record",
    "detect",
    "read",
    "text_of",
    "validate",
]
