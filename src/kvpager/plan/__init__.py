"""The planner: will it fit, how fast, for how many, at what cost; fetch or recompute. Every number explains itself."""
