"""What stops the next user on one GPU."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, lines

CLAIMS = ("wall-capacity-limits",)


def draw(rows: Rows) -> Picture:
    """Time of a token with as many users as HBM has room for, by context."""
    mine = [row for row in rows if row["token_s"] is not None]
    series = {"token_s": "all of HBM's bandwidth", "slow_token_s": "KV read as slowly as was ever measured"}
    found = [
        {"at": row["context_tokens"] / 1024, "series": told, "value": 1000 * row[key]}
        for row in mine
        for key, told in series.items()
    ]
    most = ", ".join(f"{row['users_by_capacity']:.0f} at {row['context_tokens'] // 1024}K" for row in mine)
    ticks = [row["context_tokens"] / 1024 for row in mine]
    chart = lines(found, "context, K tokens", "ms a token", series=list(series.values()), log="x", ticks=ticks, rule=100)
    return (
        chart,
        "Time of a token with as many users as HBM has room for",
        f"Llama-3.1-70B, dense attention, one B200, analytical; users: {most}; dashed: ten tokens a second",
    )
