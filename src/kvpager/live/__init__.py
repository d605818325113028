"""Live: real models and real tiers."""
