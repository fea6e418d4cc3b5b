"""Do not take the agent's word for it: run the tests after each answer, and send back what fails.

python run_the_tests.py "python -m pytest -q" "Rename load to read in reader.py"
"""

import asyncio
import shlex
import sys
from asyncio.subprocess import PIPE, STDOUT

import pilothouse as ph
from pilothouse.client import Middleware, NextPrompt

if not sys.argv[2:]:
    sys.exit("usage: python run_the_tests.py COMMAND PROMPT")
COMMAND, PROMPT = shlex.split(sys.argv[1]), sys.argv[2]


class RunTests(Middleware):
    attempts = 3

    async def after_result(self, result: ph.ResultMessage) -> NextPrompt | None:
        if result.is_error or not self.attempts:
            return None  # nothing follows
        self.attempts -= 1
        tests = await asyncio.create_subprocess_exec(*COMMAND, stdout=PIPE, stderr=STDOUT)
        output, _ = await tests.communicate()
        if tests.returncode == 0:
            return None
        return self.make_next_prompt(f"The tests fail. Mend the code, not the tests.\n\n{output.decode()[-4000:]}")


async def main() -> None:
    result = await ph.query(PROMPT, middleware=[RunTests], tools=["Read", "Edit"], allowed_tools=["Read", "Edit"])
    print(result.raise_for_error().text)


asyncio.run(main())
