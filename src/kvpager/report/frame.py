"""What every self-contained page is made with: templates, the code that draws, JSON inside a script.

A page opens without a network: Vega, Vega-Lite and Vega-Embed are inlined from vl-convert, and the page's own
security policy forbids it to load anything. Themes follow the reader's system, or a button.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvpager.report.charts.style import THEMES

if TYPE_CHECKING:
    import jinja2

__all__ = ["LABELS", "VEGA_LITE", "environment", "page"]

VEGA_LITE = "6.4"
"""Version of the specs that the pinned altair writes; vl-convert carries it."""

LABELS = {
    "measured": "taken from a run on a machine that is named with it",
    "emulated": "run, with one kind of memory standing in for another",
    "simulated": "replayed from a recording",
    "analytical": "computed by a formula, or modelled by the source note",
    "vendor-spec": "from a data sheet",
    "external-literature": "from a publication, not checked here",
    "assumption": "assumed",
    "illustrative": "made up to show a form, or of unknown origin",
}
"""What each evidence label means."""


def environment(*packages: str) -> jinja2.Environment:
    """Return the templates of ``kvpager.report`` and of other packages' folders ``template``."""
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name, "template") for name in (*packages, "kvpager.report")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    found.filters["nobreak"] = lambda text: text.replace(" %", "\u00a0%")
    found.globals["labels"] = LABELS
    return found


def page(templates: jinja2.Environment, name: str, specs: Mapping[str, Any], **values: Any) -> bytes:
    """Render a page that extends ``frame.html``.

    Parameters
    ----------
    templates : jinja2.Environment
        As `environment` makes them.
    name : str
        The page's template.
    specs : mapping of str to dict
        Vega-Lite specs by the name that an element's ``data-chart`` has.
    **values : Any
        What the template names.

    Returns
    -------
    bytes
        The whole file, UTF-8.
    """
    text = templates.get_template(name).render(
        specs=_script_json(dict(specs)), themes=_script_json(THEMES), library=_library(), **values
    )
    return text.encode()


@functools.cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that may stand inside a script element."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE).replace("</script", "<\\/script")


def _script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no ``<`` survives."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
