"""The site's search, in a real browser and without a server: it finds what users of other buffers asked in public."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote_plus

import pytest
from programs import need

pytestmark = [pytest.mark.extended, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = (  # the thread, the words that a user would type, the pages that answer
    ("google-deepmind/reverb#82", "writer blocks samples per insert", "choosing slow api"),
    ("google-deepmind/reverb#114", "sample hangs waiting for min size", "choosing slow"),
    ("google-deepmind/reverb#6", "store tables on disk instead of memory", "disk_tier"),
    ("DLR-RM/stable-baselines3#1936", "replay buffer not enough memory images", "disk_tier adapters/sb3"),
    ("tensorflow/agents#939", "n-step truncated by time limit", "views"),
    ("thu-ml/tianshou#500", "resume training replay buffer checkpoint", "store_checkpoints tutorial"),
    ("pytorch/rl#1588", "save and load replay buffer to disk", "store_checkpoints tables"),
    ("thu-ml/tianshou#1210", "prioritized replay anneal beta", "choosing api"),
    ("google-deepmind/reverb#28", "update priority TD error", "choosing tutorial"),
    ("ray-project/ray#11750", "priority of new data", "choosing api"),
    ("google-deepmind/reverb#49", "variable episode length", "views"),
    ("thu-ml/tianshou#413", "frame stack stack_num", "views"),
    ("pytorch/rl#1397", "replay buffer DDP several learners", "choosing cluster"),
    ("google-deepmind/reverb#112", "server and client on different machines", "machines"),
    ("google-deepmind/reverb#3", "sharding replay servers", "cluster"),
    ("ray-project/ray#3828", "ray share replay buffer among workers", "cluster"),
    ("ray-project/ray#13619", "docker shm-size", "operations deployment"),
    ("google-deepmind/reverb#40", "IMPALA queue max_times_sampled", "algorithms choosing"),
    ("ray-project/ray#3148", "R2D2 burn-in recurrent state", "views algorithms"),
    ("DLR-RM/stable-baselines3#278", "preload replay buffer demonstrations", "adapters/minari algorithms"),
)
FIRST_PAGE = 10
LEAST = 18


NONSENSE = ("zzyzx checkpoint", "zzyzx")
PAGE = """<!doctype html><body>%s<script>
const frames = [...document.querySelectorAll("iframe")];
const ready = (frame) =>
  /finished|did not match/.test(frame.contentDocument?.querySelector(".search-summary")?.innerText);
const links = (frame) =>
  [...frame.contentDocument.querySelectorAll(".search li a")].map((each) => each.getAttribute("href"));
const look = () => {
  if (frames.every(ready)) document.body.textContent = JSON.stringify(frames.map(links));
  else setTimeout(look, 50);
};
look();
</script>"""
"""A page that asks each question in a frame of its own, and then shows all results as JSON."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By question, the pages that the browser lists, best first."""
    need("chromium")
    site, docs = tmp_path_factory.mktemp("site"), ROOT / "docs"
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-b", "html", "-c", docs / "site", docs, site], check=True)
    asked = [words for _, words, _ in QUESTIONS] + list(NONSENSE)
    frames = "".join(f'<iframe src="search.html?q={quote_plus(words)}"></iframe>' for words in asked)
    (site / "questions.html").write_text(PAGE % frames)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={site.parent / 'browser'}", "--allow-file-access-from-files"]
    command += ["--virtual-time-budget=60000", "--dump-dom", f"file://{site}/questions.html"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1000).stdout
    links = json.loads(html.unescape(shown[shown.index("[[") : shown.rindex("]]") + 2]))
    pages = [[re.sub(r"\.html.*", "", link) for link in each] for each in links]
    return dict(zip(asked, pages, strict=True))


def test_search_answers_questions_of_other_buffers_users(results: dict[str, list[str]]) -> None:
    """18 of 20 questions have a page that answers among the first ten results."""
    missed = []
    for thread, words, pages in QUESTIONS:
        rank = next((at for at, page in enumerate(results[words], 1) if page in pages.split()), None)
        print(f"{rank or '-':>3}  {words}  ({thread})")
        if rank is None or rank > FIRST_PAGE:
            missed.append((words, thread, rank))
    assert len(QUESTIONS) - len(missed) >= LEAST, missed


def test_words_that_no_page_has(results: dict[str, list[str]]) -> None:
    """The other words of a question are still found; nothing is found for nonsense."""
    assert "store_checkpoints" in results["zzyzx checkpoint"][:FIRST_PAGE]
    assert results["zzyzx"] == []
