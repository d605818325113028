"""Reports: text, JSON, HTML."""
