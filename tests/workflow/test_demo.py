from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from harness import wait_until

from isotherm.pipeline import stages

# Every stage of the main job, and the event that tells of it.
EVENTS = {
    stages.INDEX: "tier.records_indexed",
    stages.TIER_EMBED: "tier.records_embedded",
    stages.PLAN: "tier.migration_planned",
    stages.MIGRATE: "tier.records_moved",
    stages.SUMMARIZE: "cold.summaries_written",
    stages.ARCHIVE: "cold.records_archived",
    stages.RESTORE: "tier.records_restored",
    stages.REPORT: "tier.migration_reported",
    stages.BRAIN_EMBED: "brain.objects_embedded",
    stages.BRAIN_MIRROR: "brain.graph_mirrored",
    stages.BRAIN_MENTION: "brain.mentions_linked",
    stages.EXTRACT: "interest.candidates_extracted",
    stages.S1_FOLD: "interest.candidates_folded",
    stages.S1_JUDGE: "interest.groups_judged",
    stages.S2_CLUSTER: "interest.points_clustered",
    stages.V1_2_ADJUDICATE: "interest.units_adjudicated",
    stages.V1_3_PERSIST: "interest.interests_persisted",
}

DISTILLED = ("interests", "contradictions")


def run(home: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "isotherm.tasks.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=home,
    )


@pytest.fixture
def home(base_dir: Path, tmp_path: Path) -> Any:
    """An environment like that of a new user: an empty home and no settings but where the data go."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ISOTHERM_")}
    data = base_dir / "demo"
    environment = {**kept, "HOME": str(tmp_path), "ISOTHERM_DATA_DIR": str(data), "COLUMNS": "110"}
    yield environment
    run(environment, "down")


def state(home: dict[str, str]) -> Any:
    depths = json.loads(run(home, "tiers", "--json").stdout)
    return [(d["agent"], d["session"], {t: n["records"] for t, n in d["tiers"].items()}) for d in depths]


def told(home: dict[str, str]) -> set[tuple[str, str]]:
    """(task, event) pairs of the workers' logs."""
    logs = Path(home["ISOTHERM_DATA_DIR"]).glob("process-logs/worker-*.log")
    lines = [line for log in logs for line in log.read_text().splitlines() if line.startswith("{")]
    return {(event.get("task", ""), event["event"]) for event in map(json.loads, lines)}


def flower(port: int, path: str, login: str | None) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if login:
        request.add_header("Authorization", "Basic " + b64encode(login.encode()).decode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


@pytest.mark.timeout(300)
def test_the_demo_runs_twice_with_the_same_result_and_flower_shows_tasks_without_text(home: dict[str, str]) -> None:
    first = run(home, "demo")
    assert first.returncode == 0, first.stdout[-2000:] + first.stderr[-2000:]
    assert "215 new or changed" in first.stdout
    for part in ("the same bytes", "Cleaning the conductivity cell", "reads data of", "sea kayaking", "eat fish again"):
        assert part in first.stdout
    tiers = state(home)
    assert len(tiers) == 8
    assert all({"hot", "warm", "cold"} == set(depth) for _, _, depth in tiers)

    noted = json.loads((Path(home["ISOTHERM_DATA_DIR"]) / "processes" / "flower.json").read_text())
    login = f"{noted['user']}:{noted['password']}"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        flower(noted["port"], "/api/tasks", None)
    wait_until(lambda: len(flower(noted["port"], "/api/workers", login)) == 2, what="flower to see both workers")
    tasks = flower(noted["port"], "/api/tasks?limit=10000", login)
    names = {task["name"] for task in tasks.values()}
    assert set(EVENTS) <= names
    # The demo forgets nothing, puts its objects without a folder, and is over before anybody tends what it learned.
    left_out = {stages.FORGET, stages.TEND, stages.BRAIN_IMPORT, stages.BRAIN_IMPORT_REPORT}
    assert set(EVENTS) == set(stages.STAGES) - left_out
    assert set(EVENTS.items()) <= told(home)
    shown = json.dumps(tasks)
    for word in ("kayak", "Mira", "tidewater", "Tordis", "salinity"):
        assert word not in shown

    distilled = [json.loads(run(home, name, "--agent", "atlas", "--json").stdout) for name in DISTILLED]
    assert all(distilled)
    assert all(one["evidence"] for one in distilled[0])

    second = run(home, "demo")
    assert second.returncode == 0, second.stdout[-2000:] + second.stderr[-2000:]
    assert "0 new or changed, 215 known already" in second.stdout
    assert "8 new or changed" in first.stdout
    assert "2 links: 0 new or changed" in second.stdout
    assert [json.loads(run(home, name, "--agent", "atlas", "--json").stdout) for name in DISTILLED] == distilled
    after = state(home)
    assert sum(sum(d.values()) for _, _, d in after) == 215
    assert run(home, "doctor").returncode == 0
    down = run(home, "down")
    assert down.returncode == 0
    assert "worker-1" in down.stdout
    assert run(home, "tiers").returncode == 3
