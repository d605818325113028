"""The claims of the source notes, and their checks."""
