"""The page that Streamlit runs: choices at the side, one part of the walk at a time. It shows, and computes nothing.

``kvpager explore`` starts it (`kvpager.explorer.serve`) and hands the first choices over as the script's one argument.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from kvpager.errors import KVPagerError, NoTrace
from kvpager.explorer.choices import Choices, Slider, slider_of
from kvpager.explorer.opening import FILES, from_link, from_text, to_link
from kvpager.explorer.part import Part, in_order
from kvpager.explorer.shown import matching, piece, show, tiles
from kvpager.explorer.sources import catalogue
from kvpager.report.charts.style import THEMES

__all__ = ["main"]

_AT_THE_SIDE = ("context", "users", "read", "slo_ms")

_WALKS = {
    "Why is 97 % at 5 % residency not to be had from placement alone?": (2, 6, 11, 12, 15),
    "What must be true of a workload for a CXL tier to pay?": (3, 5, 9, 10, 16, 17),
}
"""Two questions, and the parts that answer them."""


def main() -> None:
    """Draw the page for the session's choices."""
    st.set_page_config("kvpager explorer", layout="wide")
    st.html(piece("style"))
    parts = in_order()
    for words in _begin([part.number for part in parts]):
        st.warning(_plain(words))
    st.session_state.stale = False
    with st.sidebar:
        _side()
    place = _walk(parts)
    part = parts[place]
    st.header(f"{part.number}. {part.title}", anchor=False)
    st.markdown(_plain(part.shows))
    st.fragment(_moving)(part)
    st.markdown(f"**Known:** {_plain(part.known)}")
    if part.claims:
        st.subheader("What the notes claimed", anchor=False)
        _html("claims", part.claimed())
    _onward(parts, place)


def _begin(numbers: Sequence[int]) -> list[str]:
    """Fill a new session from its link; return what is wrong with the link."""
    state = st.session_state
    if "choices" in state:
        return []
    state.base = from_text(sys.argv[1]) if len(sys.argv) > 1 else Choices()
    try:
        state.choices, state.part = from_link(st.query_params.to_dict(), state.base, numbers)
    except KVPagerError as error:
        state.choices, state.part = state.base, numbers[0]
        return [f"{error}. Shown instead: what the server began with."]
    return []


def _side() -> None:
    """Draw the choices that all parts share."""
    from kvpager.models import builtin_names

    st.markdown("**kvpager explorer**")
    chosen = st.session_state.choices
    models = list(dict.fromkeys([*builtin_names(), chosen.model]))
    st.selectbox("model: a name, or the path of a config.json", models, accept_new_options=True, **_bound("side", "model"))
    titles = {name: one.title for name, one in catalogue().systems.items()}
    st.selectbox("system", list(titles), format_func=lambda name: f"{name}: {titles[name]}", **_bound("side", "system"))
    for name in _AT_THE_SIDE:
        _slide("side", name, slider_of(name))
    with st.expander("files", expanded=not any(getattr(chosen, name) for name in FILES)):
        st.text_input("recording of attention (.zarr)", **_bound("side", "trace"))
        st.text_input("document of a run (.json)", **_bound("side", "run"))
    st.caption("The address holds every choice: copy it to come back to this page.")
    with st.expander("labels: how a number is known"):
        _html("legend")


def _walk(parts: Sequence[Part]) -> int:
    """Draw the way to the other parts; return the place of the one that is shown."""
    state, numbers = st.session_state, [part.number for part in parts]
    state["walk"], titles = state.part, {part.number: f"{part.number}. {part.title}" for part in parts}

    def go(number: int | None = None) -> None:
        state.part = state.walk if number is None else number

    place = numbers.index(state.part)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        before, after = numbers[max(0, place - 1)], numbers[min(len(numbers) - 1, place + 1)]
        st.button("←", key="before", help="the part before", disabled=place == 0, on_click=go, args=(before,))
        st.selectbox("part", numbers, format_func=titles.__getitem__, key="walk", on_change=go, label_visibility="collapsed")
        st.button("→", key="after", help="the next part", disabled=place == len(numbers) - 1, on_click=go, args=(after,))
    with st.expander("Two questions to walk with"):
        for question, answers in _WALKS.items():
            known = [f"{number} ({titles[number].partition('. ')[2]})" for number in answers if number in titles]
            st.markdown(f"**{question}** Parts {_plain(', '.join(known))}.")
    return place


def _moving(part: Part) -> None:
    """Draw what a part's sliders move: alone, unless a choice that the side shows too was moved."""
    state = st.session_state
    if state.get("stale"):
        st.rerun()
    try:
        with st.spinner("computing…", show_time=True):
            sliders, notes = _fitted(part)
            shown = show(part, state.choices)
    except NoTrace as missing:
        st.info(_plain(str(missing)))
        return
    except KVPagerError as error:
        st.error(_plain(str(error)))
        shown, sliders = None, {name: slider_of(name) for name in part.sliders}
        notes = []
    finally:
        st.query_params.from_dict(to_link(state.choices, state.base, part.number))
    for words in notes:
        st.warning(_plain(words))
    columns = st.columns(min(4, max(2, len(sliders))))
    for index, (name, slider) in enumerate(sliders.items()):
        with columns[index % len(columns)]:
            _slide("part", name, slider)
    if shown is None:
        return
    config = THEMES[st.context.theme.type or "light"]
    pictures = st.columns(max(1, len(shown.specs)), gap="medium")
    for column, panel, spec in zip(pictures, shown.screen.panels, shown.specs, strict=True):
        with column:
            _html("caption", panel)
            st.vega_lite_chart({**spec, "config": config}, theme=None, key=f"picture-{part.number}-{panel.name}")
    st.markdown(_plain(shown.screen.words))
    if shown.screen.figures:
        _html("tiles", tiles(shown.screen))
    if shown.screen.table is not None:
        asked = st.text_input(f"search: {shown.screen.table.caption}", key=f"search-{part.number}")
        found = matching(shown.screen.table, asked)
        st.caption(f"{len(found.rows)} of {len(shown.screen.table.rows)} rows")
        _html("table", found)
    st.caption("The same on the command line")
    st.code("\n".join(shown.commands), language="bash", wrap_lines=True)


def _fitted(part: Part) -> tuple[dict[str, Slider], list[str]]:
    """Return a part's sliders, with the choices moved to within their ends, and words for each that was outside."""
    state, notes = st.session_state, []
    sliders = {name: part.slider(name, state.choices) for name in part.sliders}
    for name, slider in sliders.items():
        value = getattr(state.choices, name)
        near = type(value)(min(max(value, slider.low), slider.high))
        if near != value:
            notes.append(
                f"{name} = {value:,} lies outside {slider.low:,g} to {slider.high:,g} ({slider.label}); {near:,} is shown"
            )
            state.choices = state.choices.but(**{name: near})
    return sliders, notes


def _slide(place: str, name: str, slider: Slider) -> None:
    """Draw a slider: over its positions and the chosen value where they are not evenly spaced whole numbers."""
    value = getattr(st.session_state.choices, name)
    if slider.low == slider.high:
        st.caption(f"{slider.label}: {slider.text(value)} is the only one")
    elif isinstance(value, int) and not slider.steps:
        low, high, step = int(slider.low), int(slider.high), int(slider.step)
        st.slider(slider.label, low, high, step=step, **_bound(place, name))
    else:
        st.select_slider(slider.label, slider.positions(value), format_func=slider.text, **_bound(place, name))


def _bound(place: str, name: str) -> dict[str, Any]:
    """Return the keywords that tie a widget to a choice."""
    key = f"{place}-{name}"
    st.session_state[key] = getattr(st.session_state.choices, name)

    def moved() -> None:
        state = st.session_state
        state.choices = state.choices.but(**{name: state[key]})
        state.stale = place == "part" and name in _AT_THE_SIDE

    return {"key": key, "on_change": moved}


def _onward(parts: Sequence[Part], place: int) -> None:
    """Draw the ways to the parts before and after, at the end of the page: links, so that the next begins at its top."""
    links = []
    for index in (place - 1, place + 1):
        if 0 <= index < len(parts):
            link = to_link(st.session_state.choices, st.session_state.base, parts[index].number)
            name = f"{parts[index].number}. {parts[index].title}"
            links.append((urlencode(link), f"← {name}" if index < place else f"{name} →"))
    _html("onward", links)


def _html(name: str, *values: Any) -> None:
    theme = st.context.theme.type or "light"
    st.html(f'<div class="kv" data-theme="{theme}">{piece(name, *values)}</div>')


def _plain(text: str) -> str:
    """Text as it is, where Streamlit expects Markdown."""
    return "".join(f"\\{sign}" if sign in "\\`*_{}[]()<>#+-.!|~$:" else sign for sign in text)


if __name__ == "__main__":
    main()
