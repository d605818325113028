"""Charts: Altair specs that report and docs share."""
