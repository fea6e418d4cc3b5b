"""What an agent may do, and why: computed from its options, before anything is started; and what it needs.

Start reading at `report.py` (the API), then `outcomes.py`. `suggest.py` proposes rules from recorded calls.
"""

from pilothouse_policy.denied_models import DeniedModelsMatch as DeniedModelsMatch
from pilothouse_policy.denied_models import match_denied_models as match_denied_models
from pilothouse_policy.recorded_calls import RecordedCall as RecordedCall
from pilothouse_policy.recorded_calls import read_calls as read_calls
from pilothouse_policy.report import Policy as Policy
from pilothouse_policy.report import PolicyRow as PolicyRow
from pilothouse_policy.report import effective_policy as effective_policy
from pilothouse_policy.suggest import OtherCalls as OtherCalls
from pilothouse_policy.suggest import SuggestedRule as SuggestedRule
from pilothouse_policy.suggest import Suggestion as Suggestion
from pilothouse_policy.suggest import TriedCall as TriedCall
from pilothouse_policy.suggest import suggest_policy as suggest_policy
