"""Compares two configurations of an agent on a set of cases: which one is better, and by how much.

Runs on a fleet, and uses what any user of pilothouse and of a fleet has. Start reading at `comparison`; the method is
in `evidence`, and the adapter for Inspect AI in `inspect`.
"""

from pilothouse_lab.checks import CaseRun as CaseRun
from pilothouse_lab.checks import Check as Check
from pilothouse_lab.checks import Verdict as Verdict
from pilothouse_lab.checks import calls as calls
from pilothouse_lab.checks import judge as judge
from pilothouse_lab.checks import passes as passes
from pilothouse_lab.comparison import Case as Case
from pilothouse_lab.comparison import compare as compare
from pilothouse_lab.comparison import replay as replay
from pilothouse_lab.evidence import Estimate as Estimate
from pilothouse_lab.report import CaseResult as CaseResult
from pilothouse_lab.report import Report as Report
from pilothouse_lab.report import RunRecord as RunRecord
from pilothouse_lab.report import diff_tool_calls as diff_tool_calls
