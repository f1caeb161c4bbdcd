#!/usr/bin/env python3
"""Plants faults in a copy of rules, dashboards and pages, and sees that check.py finds each: tests/deploy/monitoring/planted.py"""

import pathlib
import shutil
import sys
import tempfile

import check

ROOT = pathlib.Path(__file__).resolve().parents[3]
COPIED = ["deploy/monitoring", "specs", "services/supervisor/README.md", "tests/deploy/monitoring"]
RULES = "deploy/monitoring/alerts.yaml"
USERS = "deploy/monitoring/dashboards/users.json"
OPERATORS = "deploy/monitoring/dashboards/operators.json"
BOOKS = "specs/runbooks"

# What is planted, in which file, which text gives way to which, and a part of the finding. No text: the file goes.
FAULTS = [
    ("a rule over an unknown metric", RULES, "mycora_bus_up == 0", "mycora_bus_down == 0", "has no mycora_bus_down"),
    ("a suffix that is no histogram's", RULES, "mycora_saga_stuck)", "mycora_saga_stuck_count)", "has no mycora_saga_stuck_count"),
    ("an unknown label", RULES, 'effects_open{state="manual"}', 'effects_open{status="manual"}', "has no label status"),
    ("an unknown value of a label", RULES, 'effects_open{state="manual"}', 'effects_open{state="person"}', "is never person"),
    ("a grouping by an unknown label", RULES, "by (job, upstream)", "by (job, effect)", "has the label effect"),
    ("a text with a label that is summed away", RULES, "{{ $value }} instances need", "{{ $labels.instance }} needs", "names the label instance"),
    ("an alert without a severity", RULES, "labels: { severity: info }", "labels: { team: ops }", "severity is missing"),
    ("an alert without a summary", RULES, 'summary: "Runners are dead"', 'title: "Runners are dead"', "has no summary"),
    ("an alert with another's runbook", RULES, f"{BOOKS}/MycoraBusDown.md", f"{BOOKS}/MycoraSagaStuck.md", "runbook is not"),
    ("an alert without unit tests", RULES, "- alert: MycoraBusDown", "- alert: MycoraBusGone", "sees it fire"),
    ("an alert without a runbook", f"{BOOKS}/MycoraBusDown.md", "", "", "there is no specs/runbooks/MycoraBusDown.md"),
    ("a runbook without an alert", RULES, "- alert: MycoraBusDown", "- alert: MycoraBusGone", "no alert has this name"),
    ("a runbook without a section", f"{BOOKS}/MycoraBusDown.md", "## What not to do", "## Never", "its sections are"),
    ("a runbook under another heading", f"{BOOKS}/MycoraBusDown.md", "# MycoraBusDown", "# The bus", "its heading is not"),
    ("a link that leads nowhere", f"{BOOKS}/MycoraProcessDown.md", "../architecture.md", "../structure.md", "leads nowhere"),
    ("a link to a missing heading", f"{BOOKS}/MycoraProcessDown.md", "#reading-a-port", "#ports", "has no heading #ports"),
    ("a severity that differs in the list", f"{BOOKS}/README.md", "MycoraBusDown.md) | critical", "MycoraBusDown.md) | info", "is info there"),
    ("an alert that the list lacks", f"{BOOKS}/README.md", "[MycoraBusDown](", "[BusDown](", "does not list MycoraBusDown"),
    ("a bound that storage does not show", RULES, "mycora_storage_redis_max_bytes > 0", "mycora_storage_redis_bound > 0", "has no mycora_storage_redis_bound"),
    ("an alert of storage without unit tests", RULES, "- alert: MycoraFlowsRelieved", "- alert: MycoraFlowsGone", "sees it fire"),
    ("a severity of two that the list lacks", f"{BOOKS}/README.md", "NearlyFull.md) | warning, critical", "NearlyFull.md) | critical", "is critical there"),
    ("a panel with an unknown kind of records", OPERATORS, 'kind=\\"flows_ended\\"', 'kind=\\"flows_gone\\"', "is never flows_gone"),
    ("a metric that the page lacks", "specs/metrics.md", "| `mycora_saga_kept`", "| `mycora_saga_stuck`", "stands there twice"),
    ("a panel over an unknown metric", USERS, "mycora_saga_parked_keys", "mycora_saga_parked", "has no mycora_saga_parked"),
    ("a panel with an unknown value", USERS, 'state=\\"manual\\"', 'state=\\"person\\"', "is never person"),
    ("a panel with a data source of its own", USERS, '"uid": "${datasource}"}, "gridPos"', '"uid": "prom-1"}, "gridPos"', "data source of its own"),
    ("a panel without a description", OPERATORS, '"description": "Lanes that replicas own."', '"description": ""', "no description"),
    ("two panels with one id", OPERATORS, '"id": 3,', '"id": 2,', "two panels have the id 2"),
    ("panels over each other", OPERATORS, '"x": 8, "y": 1,', '"x": 0, "y": 1,', "lies over"),
    ("a dashboard of an older Grafana", USERS, '"schemaVersion": 38', '"schemaVersion": 30', "schema is older"),
    ("two dashboards with one uid", USERS, '"uid": "mycora-users"', '"uid": "mycora-operators"', "that of another dashboard"),
]


def copy(folder):
    """Copies what the check reads."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)


def find(folder, fault):
    """Plants one fault and takes it away again; returns why it was not found, or nothing."""
    _, name, old, new, expected = fault
    path = folder / name
    original = path.read_text()
    if old not in original:
        return f"{name} has no {old!r} any more"
    if old:
        path.write_text(original.replace(old, new, 1))
    else:
        path.unlink()
    try:
        report, _ = check.check(folder)
    finally:
        path.write_text(original)
    return None if any(expected in line for line in report.lines) else f"no finding says {expected!r}"


def main():
    passed = failed = 0
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        copy(folder)
        for fault in FAULTS:
            wrong = find(folder, fault)
            passed, failed = passed + (not wrong), failed + bool(wrong)
            if wrong:
                print(f"FAIL planted: {fault[0]}: {wrong}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
