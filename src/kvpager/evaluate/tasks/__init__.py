"""Tasks of `kvpager evaluate`, one file each. See `kvpager.evaluate.base` for the contract."""
