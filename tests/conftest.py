"""Settings that every test shares."""

import os

from hypothesis import HealthCheck, settings

# Machines differ in speed and CI must not flicker: no deadline, and in CI the same examples each time.
settings.register_profile("kvpager", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ)
settings.load_profile("kvpager")
