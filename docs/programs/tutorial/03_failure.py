"""Handle a run that fails, and a question that takes too long.

python 03_failure.py
"""

import asyncio

import pilothouse as ph
from pilothouse_testing import Hang, HttpError, ScriptedModel


async def main() -> None:
    with ScriptedModel() as model:
        model.on("wrong key", reply=HttpError(401))
        model.on("slow", reply=Hang())
        agent = ph.Agent(env=model.env(max_retries=0), inherit_env=False)

        result = await agent.query("a question with a wrong key")
        print("success:", result.is_success)
        print("error:", type(result.error).__name__)
        try:
            result.raise_for_error()
        except ph.AuthenticationError as error:
            print("HTTP status:", error.api_error_status)

        try:
            await agent.query("a slow question", timeout=1)
        except ph.QueryTimeout as error:
            print(f"no answer within {error.seconds:g} s")


asyncio.run(main())
