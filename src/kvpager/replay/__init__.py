"""Replay: drive the Pager from a recorded trace over modelled tiers."""
