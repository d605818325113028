"""Nobody cites a claim that was withdrawn or demoted without saying so: not in the docs, not in the report."""

import importlib.util
import re
from pathlib import Path

import pytest

from kvpager.claims.ledger import claims, status
from kvpager.claims.notes import CLAIMS, judge

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = sorted((ROOT / "src" / "kvpager" / "report" / "template").glob("*"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *TEMPLATES])
FALLEN = {id: status(id) for id in claims() if status(id) != "audited"}


def citations_without_status(text):
    """Id and place of each fallen claim that a paragraph, or a row of a table, names without its status."""
    found = []
    for passage in re.split(r"\n\s*\n|\n(?=\s*\|)", text):
        for id, word in FALLEN.items():
            if re.search(rf"(?<![\w-]){re.escape(id)}(?![\w-]|\.\d)", passage) and word not in passage:
                found.append((id, passage.strip()[:80]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_fallen_claim_is_cited_with_its_status(page):
    missing = citations_without_status(page.read_text(encoding="utf-8"))
    assert not missing, f"say its status ({', '.join(sorted({FALLEN[id] for id, _ in missing}))}) beside it: {missing}"


def test_a_citation_without_status_is_noticed():
    assert citations_without_status("By `ladder-values` it is 97 %.\n\nAll was withdrawn.") == [
        ("ladder-values", "By `ladder-values` it is 97 %.")
    ]
    assert citations_without_status("| `ratio-65` | 65 |\n| `capex-36` | withdrawn |") == [("ratio-65", "| `ratio-65` | 65 |")]
    assert not citations_without_status("`ladder-values` (withdrawn) said 97 %;\nsee `ratio-65-payload` and `kv-per-token`.")
    assert citations_without_status("`cxl-latency-200` was withdrawn.")[0][0] == "cxl-latency-200", (
        "it was demoted, not withdrawn"
    )


def test_the_report_shows_the_status_of_what_it_judges():
    assert {verdict["id"] for verdict in judge({})} == {*CLAIMS}
    assert {verdict["id"]: verdict["status"] for verdict in judge({})} == {id: status(id) for id in CLAIMS}
    (template,) = [path for path in TEMPLATES if path.name == "report.html"]
    lines = [line for line in template.read_text(encoding="utf-8").splitlines() if "claim.id" in line]
    assert lines
    assert all("claim.status" in line for line in lines)


def test_the_page_of_the_ledger_shows_what_the_ledger_says():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert {found[2] for found in tables.LEDGER_MARK.finditer(page)} == set(tables.LEDGER_HEADS)
    assert tables.filled(page) == page, "a table is stale: run make tables"
    stale = page.replace("| inconsistent | 42 |", "| inconsistent | 41 |")
    assert stale != page
    assert tables.filled(stale) == page
