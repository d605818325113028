"""The parts of the walk, one file each."""
