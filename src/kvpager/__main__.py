"""``python -m kvpager``."""

from kvpager.cli import main

main()
