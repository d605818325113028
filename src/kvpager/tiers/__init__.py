"""Tiers: where bytes are. One contract, modelled and live."""
