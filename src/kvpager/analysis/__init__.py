"""Pure functions: what a recording or a budget implies."""
