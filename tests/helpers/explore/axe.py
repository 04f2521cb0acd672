"""axe-core, and what it finds in a page: nothing serious."""

from __future__ import annotations

import pytest

from helpers.explore.javascript import HERE, missing

AXE = HERE / "node_modules/axe-core/axe.min.js"
VIOLATIONS = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
    .filter(({impact}) => ["serious", "critical"].includes(impact))
    .map(({id, nodes}) => [id, nodes.map(({target, failureSummary}) => [target.join(" "), failureSummary])])"""


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.exists():
        missing(f"there is no axe-core: `npm ci --prefix {AXE.parents[2]}` installs it")
    return AXE.read_text("utf-8")
