"""The planner: will it fit, how fast, for how many, at what cost; fetch or recompute. Every number explains itself."""

from kvpager.plan.assumptions import DEFAULT, Assumptions
from kvpager.plan.comparison import compare
from kvpager.plan.economics import breakeven
from kvpager.plan.single import as_json, plan
from kvpager.plan.step import HitCurve
from kvpager.plan.sweeping import sweep

__all__ = ["DEFAULT", "Assumptions", "HitCurve", "as_json", "breakeven", "compare", "plan", "sweep"]
