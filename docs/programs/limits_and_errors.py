"""Set limits, and act on what goes wrong.

python limits_and_errors.py "Tidy up this directory"
"""

import asyncio
import sys
import time

import pilothouse as ph


async def main() -> int:
    prompt = " ".join(sys.argv[1:]) or "Tidy up this directory"
    try:
        result = await ph.query(prompt, max_turns=3, max_budget_usd=0.50, timeout=300, idle_timeout=120)
        result.raise_for_error()
    except ph.MaxTurnsError as error:
        print("not finished; go on with resume =", error.result.session_id)
    except ph.RateLimitError as error:
        wait = error.resets_at - time.time() if error.resets_at else None
        print("too much at once; try again", f"in {wait:.0f} s" if wait else "later")
    except ph.QueryTimeout as error:
        print(f"{error.kind} of {error.seconds:g} s ran out; the child was ended")
    except ph.ResultError as error:
        print(f"the run failed, HTTP status {error.api_error_status}: {error}")
    except ph.CLINotFoundError as error:
        print(error)  # what was tried, and how to install it
    except ph.ProcessError as error:
        print(f"the CLI failed, exit code {error.exit_code}: {error}")
    else:
        print(result.text)
        return 0
    return 1


sys.exit(asyncio.run(main()))
