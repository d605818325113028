"""What hardware can do and costs: a catalogue in TOML, systems composed of it, and a probe of this machine.

The probe is in `kvpager.hardware.probe`, which is imported by who measures.
"""

from kvpager.hardware.bus import bus_limit_bytes_per_s
from kvpager.hardware.catalogue import Catalogue, load
from kvpager.hardware.parts import Accelerator, Link, Medium, Part
from kvpager.hardware.system import BillItem, System, TierPath

__all__ = [
    "Accelerator",
    "BillItem",
    "Catalogue",
    "Link",
    "Medium",
    "Part",
    "System",
    "TierPath",
    "bus_limit_bytes_per_s",
    "load",
]
