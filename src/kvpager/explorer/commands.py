"""Command lines that repeat what a part shows, as one would type them."""

from __future__ import annotations

import shlex

from kvpager.explorer.choices import Choices

__all__ = ["line", "plan_command"]


def line(*words: object, **options: object) -> str:
    """Return ``kvpager WORDS --name value ...``, quoted for a shell; options that are None are left out."""
    parts = ["kvpager", *map(str, words)]
    for name, value in options.items():
        if value is not None:
            parts += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(parts)


def plan_command(choices: Choices) -> str:
    """The planner's answer for the choices."""
    return line(
        "plan",
        model=choices.model,
        system=choices.system,
        context=choices.context,
        users=choices.users,
        read=f"{100 * choices.read:g}%",
        slo=f"{choices.slo_ms:g}ms",
    )
