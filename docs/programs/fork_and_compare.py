"""Let several models continue from the same point, side by side, and compare their answers.

python fork_and_compare.py "Read app.py" "How would you make it faster?" haiku sonnet
"""

import sys

import anyio

import pilothouse as ph


async def main() -> None:
    if not sys.argv[3:]:
        sys.exit("usage: python fork_and_compare.py BACKGROUND QUESTION MODEL …")
    background, question, *models = sys.argv[1:]
    answers: dict[str, str] = {}

    async def ask(session: ph.Session, model: str) -> None:
        async with session.fork(model=model) as branch:
            try:
                result = (await branch.query(question)).raise_for_error()
            except ph.PilothouseError as error:  # one failure must not end the others
                answers[model] = f"no answer: {error}"
            else:
                answers[model] = f"{result.text}\n[${result.cost_usd or 0:.4f}]"

    async with ph.session(tools=["Read", "Glob", "Grep"], max_turns=20) as session:
        (await session.query(background)).raise_for_error()  # read once, known to every branch
        async with anyio.create_task_group() as group:
            for model in models:
                group.start_soon(ask, session, model)
    for model in models:
        print(f"--- {model}\n{answers[model]}")


anyio.run(main)
