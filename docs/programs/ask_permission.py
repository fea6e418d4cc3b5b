"""Decide in the terminal what may be done: yes, always, or no and why. Answer the model's questions there, too.

python ask_permission.py "Create a file notes.txt with today's date"
"""

import asyncio
import sys

import pilothouse as ph
from pilothouse.permissions import AddRules, QuestionOption, QuestionRequest


def may_i(request: ph.PermissionRequest) -> ph.Allow | ph.Deny:
    print(f"\n{request.prompt}\n  {request.tool_name} {request.tool_input}")
    answer = input("[y]es, [a]lways in this session, or why not: ").strip()
    if answer == "y":
        return ph.Allow()
    if answer == "a":  # rules only: another suggestion may be to change the permission mode
        rules = [change for change in request.suggestions if isinstance(change, AddRules)]
        return ph.Allow(updated_permissions=[change.with_destination("session") for change in rules])
    return ph.Deny(answer)


def choose(request: QuestionRequest) -> list[str | QuestionOption]:
    answers: list[str | QuestionOption] = []
    for question in request.questions:
        print(f"\n{question.text}")
        for number, option in enumerate(question.options, 1):
            print(f"  {number}. {option.label}: {option.description}")
        answer = input("number, or your own words: ").strip()
        is_number = answer.isdecimal() and 0 < int(answer) <= len(question.options)
        answers.append(question.options[int(answer) - 1] if is_number else answer)
    return answers


async def main() -> None:
    prompt = " ".join(sys.argv[1:]) or "Create a file notes.txt with today's date"
    result = await ph.query(prompt, can_use_tool=may_i, on_question=choose, max_turns=20)
    print(f"\n{result.raise_for_error().text}")
    for denial in result.permission_denials:
        print("denied:", denial.tool_name, denial.tool_input, file=sys.stderr)


asyncio.run(main())
