"""The page of the API in Chromium, closed and folded out, on a desk and in a hand."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tallymark.runtime import docs_page
from tallymark.runtime.contract import OPERATIONS

CHROMIUM = shutil.which("chromium") or ""
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--dump-dom",
)
# Windows have a least width and frames have none. The page in the frame tells the one around it what it sees.
FRAME = """<!doctype html><iframe src="page.html" style="width: WIDTHpx; height: 800px; border: 0"></iframe>
<script>addEventListener("message", event => { document.title = event.data; });</script>"""
MEASURE = """<script>addEventListener("load", () => {
  const shown = what => [...document.querySelectorAll(what)].filter(element => element.checkVisibility());
  const root = document.documentElement;
  parent.postMessage(JSON.stringify({
    overflow: root.scrollWidth - root.clientWidth,
    cut: shown("*").filter(element => element.getBoundingClientRect().right > root.clientWidth).length,
    operations: shown("summary").length,
    examples: shown("details h3").filter(title => title.textContent === "Example").length,
    loaded: performance.getEntriesByType("resource").map(entry => entry.name),
  }), "*");
});</script>"""
STYLED = """addEventListener("load", () => parent.postMessage(JSON.stringify(
  {width: getComputedStyle(document.body).maxWidth}), "*"));"""

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")


def seen(page: str, width: int, home: Path, measure: str = MEASURE) -> dict[str, Any]:
    """What Chromium makes of the page at this width."""
    (home / "page.html").write_text(page + measure, encoding="utf-8")
    frame = home / "frame.html"
    frame.write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={home / 'profile'}", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = re.search("<title>(.*?)</title>", done.stdout)
    assert title is not None, done.stdout
    found: dict[str, Any] = json.loads(html.unescape(title[1]))
    return found


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("opened", [False, True])
def test_the_page_fits_its_window_and_loads_nothing(tmp_path: Path, width: int, opened: bool) -> None:
    page = docs_page.page("open", "http://127.0.0.1:4000")
    assert seen(page.replace("<details>", "<details open>") if opened else page, width, tmp_path) == {
        "overflow": 0,
        "cut": 0,
        "operations": len(OPERATIONS),
        "examples": len(OPERATIONS) if opened else 0,
        "loaded": [],
    }


@pytest.mark.parametrize(("spoilt", "width"), [("", "896px"), ("/* */", "none")])
def test_the_pages_policy_lets_its_own_style_through_and_no_other(tmp_path: Path, spoilt: str, width: str) -> None:
    digest = base64.b64encode(hashlib.sha256(STYLED.encode()).digest()).decode()
    policy = docs_page.content_security_policy().replace("; frame-ancestors 'none'", f"; script-src 'sha256-{digest}'")
    page = docs_page.page("open", "http://127.0.0.1:4000").replace("</style>", f"{spoilt}</style>")
    head = f'<head><meta http-equiv="content-security-policy" content="{policy}"><script>{STYLED}</script>'
    assert seen(page.replace("<head>", head), 1280, tmp_path, measure="") == {"width": width}
