"""What an agent may do, and why: computed from its options, before anything is started.

Start reading at `report.py` (the API), then `outcomes.py`.
"""

from pilothouse_policy.denied_models import DeniedModelsMatch as DeniedModelsMatch
from pilothouse_policy.denied_models import match_denied_models as match_denied_models
from pilothouse_policy.report import Policy as Policy
from pilothouse_policy.report import PolicyRow as PolicyRow
from pilothouse_policy.report import effective_policy as effective_policy
