"""Decisions that the CLI asks the host for: permissions, questions, plans, elicitations, dialogs.

Owns the requests as typed values, the decisions, a dispatcher for each control subtype, and requests that wait.
Must not know how requests and responses travel, hooks, or tools. Start with `requests`, then `dispatcher`, `approvals`.
"""

from pilothouse.messages.core import PermissionMode as PermissionMode
from pilothouse.options.permission_rules import PermissionBehavior as PermissionBehavior
from pilothouse.options.permission_rules import PermissionRule as PermissionRule
from pilothouse.options.permission_rules import RuleSet as RuleSet
from pilothouse.permissions.approvals import Ask as Ask
from pilothouse.permissions.approvals import Asks as Asks
from pilothouse.permissions.approvals import AskStream as AskStream
from pilothouse.permissions.approvals import AskView as AskView
from pilothouse.permissions.approvals import Settlement as Settlement
from pilothouse.permissions.dispatcher import Accept as Accept
from pilothouse.permissions.dispatcher import Cancel as Cancel
from pilothouse.permissions.dispatcher import CanUseTool as CanUseTool
from pilothouse.permissions.dispatcher import ConfirmCallback as ConfirmCallback
from pilothouse.permissions.dispatcher import Decline as Decline
from pilothouse.permissions.dispatcher import DialogCallback as DialogCallback
from pilothouse.permissions.dispatcher import DialogRequest as DialogRequest
from pilothouse.permissions.dispatcher import ElicitationCallback as ElicitationCallback
from pilothouse.permissions.dispatcher import ElicitationRequest as ElicitationRequest
from pilothouse.permissions.dispatcher import PlanCallback as PlanCallback
from pilothouse.permissions.dispatcher import QuestionCallback as QuestionCallback
from pilothouse.permissions.requests import AddDirectories as AddDirectories
from pilothouse.permissions.requests import AddRules as AddRules
from pilothouse.permissions.requests import Allow as Allow
from pilothouse.permissions.requests import Answers as Answers
from pilothouse.permissions.requests import Confirm as Confirm
from pilothouse.permissions.requests import Decision as Decision
from pilothouse.permissions.requests import Deny as Deny
from pilothouse.permissions.requests import PermissionRequest as PermissionRequest
from pilothouse.permissions.requests import PermissionUpdate as PermissionUpdate
from pilothouse.permissions.requests import PlanRequest as PlanRequest
from pilothouse.permissions.requests import QuestionOption as QuestionOption
from pilothouse.permissions.requests import QuestionRequest as QuestionRequest
from pilothouse.permissions.requests import RemoveDirectories as RemoveDirectories
from pilothouse.permissions.requests import RemoveRules as RemoveRules
from pilothouse.permissions.requests import ReplaceRules as ReplaceRules
from pilothouse.permissions.requests import SetMode as SetMode
from pilothouse.permissions.requests import UnknownUpdate as UnknownUpdate
from pilothouse.permissions.requests import UserQuestion as UserQuestion
from pilothouse.permissions.requests import allow_all as allow_all
from pilothouse.permissions.requests import deny_all as deny_all
from pilothouse.permissions.requests import read_request as read_request
from pilothouse.permissions.requests import read_subject as read_subject
