"""Get a Python object instead of text.

python typed_output.py invoice.txt
"""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

import pilothouse as ph


@dataclass
class Line:
    what: str
    price: float


@dataclass
class Invoice:
    number: str
    lines: list[Line]


async def main() -> None:
    if not sys.argv[1:]:
        sys.exit("usage: python typed_output.py TEXT")
    text = Path(sys.argv[1]).read_text()
    result = await ph.query(f"Extract this invoice:\n\n{text}", output_type=Invoice, tools=[])
    result.raise_for_error()  # a StructuredOutputError if the answer does not fit
    invoice = result.output
    for line in invoice.lines:
        print(f"{line.what:20} {line.price:10.2f}")
    print(f"{'Invoice ' + invoice.number:20} {sum(line.price for line in invoice.lines):10.2f}")


asyncio.run(main())
