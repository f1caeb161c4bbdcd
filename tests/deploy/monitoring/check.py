#!/usr/bin/env python3
"""Compares what deploy/monitoring offers with the pages in specs: tests/deploy/monitoring/check.py [ROOT]

Every metric, label and label value in rules and dashboards stands in specs/metrics.md; every alert has a runbook, a line in
the list of runbooks and unit tests in which it fires and stays quiet; every runbook has its alert. With `--queries FILE`
the queries of the dashboards are written there as recording rules, for `promtool check rules`.
"""

import argparse
import json
import pathlib
import re
import sys
from dataclasses import dataclass, field

HISTOGRAM_SUFFIXES = ("_bucket", "_count", "_sum")
# Labels that Prometheus adds to every series.
ADDED_LABELS = {"job", "instance"}
SEVERITIES = {"critical", "warning", "info"}
SECTIONS = ["Meaning", "Confirm", "What Mycora does by itself", "What to do", "What not to do"]
GRAFANA_SCHEMA_MIN = 38
VARIABLES = {"$__rate_interval": "5m", "$__range": "1h", "${datasource}": "x"}


@dataclass
class Metric:
    """A metric of the page: its type, and its labels with the values that the page names."""

    kind: str
    labels: dict[str, set[str]]


@dataclass
class Alert:
    """An alerting rule."""

    name: str
    line: int
    expr: str = ""
    severity: str = ""
    annotations: dict[str, str] = field(default_factory=dict)


@dataclass
class Panel:
    """A panel of a dashboard with its queries."""

    content: dict
    exprs: list[str]


class Report:
    """Findings, and the number of subjects without any."""

    def __init__(self):
        self.passed, self.failed, self.lines = 0, 0, []

    def note(self, subject, findings):
        """Counts a subject, which passes when it has no findings."""
        findings = list(findings)
        self.passed, self.failed = self.passed + (not findings), self.failed + bool(findings)
        self.lines += [f"FAIL {subject}: {finding}" for finding in findings]


def parse_metrics(page):
    """Reads the tables of specs/metrics.md."""
    metrics, repeated = {}, []
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = re.fullmatch(r"`(mycora_\w+)`", cells[0])
        if not line.startswith("| ") or not name or len(cells) < 6:
            continue
        labels = {}
        for part in filter(None, (part.strip() for part in cells[3].split(";"))):
            words = re.findall(r"`([^`]*)`", part)
            labels[words[0]] = set(words[1:])
        repeated += [name[1]] if name[1] in metrics else []
        metrics[name[1]] = Metric(cells[1], labels)
    return metrics, repeated


def parse_alerts(path):
    """Reads the rules. promtool judges the YAML; this knows only the form in which the file is written."""
    alerts, key, folded = [], None, None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if not text or text.startswith("#"):
            continue
        if begun := re.fullmatch(r"- alert: (\w+)", text):
            alerts.append(Alert(begun[1], number))
            folded = None
        elif alerts and folded is not None and indent > folded:
            alerts[-1].expr += f" {text}"
        elif alerts and (pair := re.fullmatch(r"(\w+): (.*)", text)):
            key, value = pair.groups()
            folded = indent if key == "expr" and value == ">" else None
            if key == "expr":
                alerts[-1].expr = "" if value == ">" else value
            elif key == "labels":
                alerts[-1].severity = "".join(re.findall(r"severity: (\w+)", value))
            elif indent > 8:
                alerts[-1].annotations[key] = value.strip('"')
    return alerts


def find_metric(metrics, name):
    """Returns the metric that a name in a query belongs to."""
    if name in metrics:
        return metrics[name]
    base = next((name.removesuffix(end) for end in HISTOGRAM_SUFFIXES if name.endswith(end)), None)
    found = metrics.get(base)
    return found if found and found.kind == "histogram" else None


def parse_matchers(text):
    """The labels of a selector, each with the values that it is compared with; none for a pattern that is no list."""
    for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', text):
        is_list = operator in ("=", "!=") or re.fullmatch(r"[\w|-]*", value)
        yield label, value.split("|") if is_list and "$" not in value else []


def check_expr(metrics, expr):
    """Finds metrics, labels and values of a query that the page does not have."""
    known = set(ADDED_LABELS)
    for name, matchers in re.findall(r"\b(mycora_\w+)(\{[^}]*\})?", expr):
        metric = find_metric(metrics, name)
        if metric is None:
            yield f"specs/metrics.md has no {name}"
            continue
        known |= set(metric.labels) | ({"le"} if name.endswith("_bucket") else set())
        for label, values in parse_matchers(matchers):
            if label in ADDED_LABELS or (label == "le" and name.endswith("_bucket")):
                continue
            if label not in metric.labels:
                yield f"{name} has no label {label}"
                continue
            listed = metric.labels[label]
            yield from (f"{label} of {name} is never {value}" for value in values if listed and value not in listed)
    for labels in re.findall(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)", expr):
        named = filter(None, (label.strip() for label in labels.split(",")))
        yield from (f"no metric of this query has the label {label}" for label in named if label not in known | {"le"})


def labels_of(metrics, expr):
    """Labels that the result of a rule has: those that it is grouped by, else those of its metrics."""
    if grouped := re.findall(r"\bby\s*\(([^)]*)\)", expr):
        return {label.strip() for labels in grouped for label in labels.split(",")}
    found = (find_metric(metrics, name) for name in re.findall(r"\bmycora_\w+", expr))
    return ADDED_LABELS.union(*(metric.labels for metric in found if metric))


def check_alert(root, metrics, alert):
    """Finds what a rule lacks."""
    yield from check_expr(metrics, alert.expr)
    if alert.severity not in SEVERITIES:
        yield f"its severity is {alert.severity or 'missing'}"
    for key in ("summary", "description", "runbook"):
        if not alert.annotations.get(key):
            yield f"it has no {key}"
    texts = " ".join(alert.annotations.values())
    used = set(re.findall(r"\$labels\.(\w+)", texts))
    yield from (f"its text names the label {label}, which it does not have" for label in sorted(used - labels_of(metrics, alert.expr)))
    expected = f"specs/runbooks/{alert.name}.md"
    if alert.annotations.get("runbook") != expected:
        yield f"its runbook is not {expected}"
    elif not (root / expected).is_file():
        yield f"there is no {expected}"


def check_links(page):
    """Finds relative links of a page that lead nowhere."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists():
            yield f"the link to {target} leads nowhere"
        elif anchor and anchor not in anchors(linked):
            yield f"{path or page.name} has no heading #{anchor}"


def anchors(page):
    """The names by which links reach the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_runbook(page, names):
    """Finds what a runbook lacks."""
    text = page.read_text()
    if page.stem not in names:
        yield "no alert has this name"
    if not text.startswith(f"# {page.stem}\n"):
        yield f"its heading is not {page.stem}"
    if (found := re.findall(r"^## (.*)$", text, re.M)) != SECTIONS:
        yield f"its sections are {', '.join(found)}, not {', '.join(SECTIONS)}"
    yield from check_links(page)


def check_list(page, alerts):
    """Finds alerts that the list of runbooks lacks, and lines without an alert."""
    expected = {}
    for alert in alerts:
        expected.setdefault(alert.name, []).append(alert.severity)
    listed = dict(re.findall(r"^\| \[(\w+)\]\(\w+\.md\) \| ([^|]*) \|", page.read_text(), re.M))
    yield from (f"it lists {name}, which is no alert" for name in sorted(set(listed) - set(expected)))
    for name, severities in expected.items():
        if name not in listed:
            yield f"it does not list {name}"
        elif listed[name] != ", ".join(severities):
            yield f"{name} is {listed[name]} there, and {', '.join(severities)} in the rules"
    yield from check_links(page)


def tested_alerts(folder):
    """Alerts that the unit tests see fire, and those that they see quiet."""
    fires, quiet = set(), set()
    for path in sorted(folder.glob("*_test.yaml")):
        for block in re.split(r"\n\s*- expr: ", path.read_text())[1:]:
            names = re.findall(r'alertname="(\w+)"', block)
            (quiet if "exp_samples: []" in block else fires).update(names[:1])
    return fires, quiet


def read_panels(dashboard):
    """All panels of a dashboard, those of closed rows too."""
    for content in dashboard.get("panels", []):
        exprs = [target.get("expr", "") for target in content.get("targets", [])]
        yield Panel(content, exprs)
        yield from read_panels(content)


def check_dashboard(dashboard, others):
    """Finds what a dashboard as a whole lacks."""
    if dashboard.get("schemaVersion", 0) < GRAFANA_SCHEMA_MIN:
        yield f"its schema is older than {GRAFANA_SCHEMA_MIN}, that of Grafana 10"
    if not dashboard.get("uid") or dashboard["uid"] in others:
        yield "its uid is missing, or that of another dashboard"
    if dashboard.get("id") is not None:
        yield "it has the id of one Grafana's database"
    variables = {one["name"]: one for one in dashboard.get("templating", {}).get("list", [])}
    source = variables.get("datasource", {})
    if (source.get("type"), source.get("query")) != ("datasource", "prometheus"):
        yield "its data source is no variable"
    ids = [panel.content.get("id") for panel in read_panels(dashboard)]
    yield from (f"two panels have the id {number}" for number in sorted({n for n in ids if ids.count(n) > 1}))
    taken = {}
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            if cell[0] > 23 or cell in taken:
                yield f"{panel['title']} lies over {taken.get(cell, 'the right edge')}"
                break
            taken[cell] = panel["title"]


def check_panel(metrics, panel):
    """Finds what a panel lacks."""
    content = panel.content
    if content["type"] == "row":
        return
    if not content.get("title") or not content.get("description"):
        yield "it has no title or no description"
    if not panel.exprs:
        yield "it has no query"
    sources = [content.get("datasource"), *(target.get("datasource") for target in content.get("targets", []))]
    if any(source != {"type": "prometheus", "uid": "${datasource}"} for source in sources):
        yield "it names a data source of its own"
    if not content.get("fieldConfig", {}).get("defaults", {}).get("unit"):
        yield "it has no unit"
    for expr in panel.exprs:
        if not re.search(r"\bmycora_\w+|\bup\{", expr):
            yield f"its query names no metric: {expr!r}"
        yield from check_expr(metrics, expr)


def write_queries(path, dashboards):
    """Writes the queries as recording rules, with plain values in the place of Grafana's variables."""
    rules = []
    for dashboard in dashboards.values():
        for expr in (expr for panel in read_panels(dashboard) for expr in panel.exprs):
            for variable, value in VARIABLES.items():
                expr = expr.replace(variable, value)
            rules.append({"record": f"query:{len(rules)}", "expr": expr})
    path.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))


def check(root):
    """Checks everything below a root."""
    report, monitoring, runbooks = Report(), root / "deploy/monitoring", root / "specs/runbooks"
    metrics, repeated = parse_metrics(root / "specs/metrics.md")
    alerts = parse_alerts(monitoring / "alerts.yaml")
    names = {alert.name for alert in alerts}
    page = [f"{name} stands there twice" for name in repeated] + ([] if metrics else ["it has no table of metrics"])
    report.note("specs/metrics.md", [*page, *check_links(root / "specs/metrics.md")])
    fires, quiet = tested_alerts(root / "tests/deploy/monitoring")
    for alert in alerts:
        untested = [f"no unit test sees it {what}" for what, seen in (("fire", fires), ("quiet", quiet)) if alert.name not in seen]
        report.note(f"deploy/monitoring/alerts.yaml:{alert.line} {alert.name}", [*check_alert(root, metrics, alert), *untested])
    report.note("deploy/monitoring/alerts.yaml", [] if alerts else ["it has no alert"])
    for page in sorted(runbooks.glob("*.md")):
        findings = check_list(page, alerts) if page.name == "README.md" else check_runbook(page, names)
        report.note(f"specs/runbooks/{page.name}", findings)
    dashboards = {path.name: json.loads(path.read_text()) for path in sorted((monitoring / "dashboards").glob("*.json"))}
    uids = []
    for name, dashboard in dashboards.items():
        report.note(f"deploy/monitoring/dashboards/{name}", check_dashboard(dashboard, uids))
        uids.append(dashboard.get("uid"))
        for panel in read_panels(dashboard):
            report.note(f"deploy/monitoring/dashboards/{name} {panel.content.get('title')!r}", check_panel(metrics, panel))
    report.note("deploy/monitoring/dashboards", [] if dashboards else ["there is none"])
    return report, dashboards


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[3])
    parser.add_argument("--queries", type=pathlib.Path, metavar="FILE", help="write the queries of the dashboards there, as rules")
    arguments = parser.parse_args()
    report, dashboards = check(arguments.root)
    if arguments.queries:
        write_queries(arguments.queries, dashboards)
    print("\n".join([*report.lines, f"{report.passed} passed, {report.failed} failed"]))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
