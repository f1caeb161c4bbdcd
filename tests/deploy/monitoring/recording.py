"""Recordings of what /metrics of real processes shows, as Prometheus would store it, and rule tests for promtool made of them."""

import http.client
import json
import re
import subprocess
import threading
import time
from dataclasses import dataclass, field

# Label `job` of every target, as the rules expect it.
JOB = "mycora"
# Seconds between two scrapes of a recording.
PACE_SECS = 0.5
# Seconds between the same two scrapes in a rule test: an interval that Prometheus is often given. A replay is therefore 30 times as
# fast as its run, so that a rule with `for: 15m` needs half a minute of it. Rates are 30 times as low as they were.
INTERVAL_SECS = 15
# A process that does not answer within this time is down.
SCRAPE_TIMEOUT_SECS = 5
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?")
STALE, MISSING = "stale", "_"


class RunFailed(Exception):
    """A run that did not get to where its recording makes sense."""


@dataclass(frozen=True)
class Target:
    """An ops port that is scraped."""

    service: str
    instance: str


@dataclass
class Check:
    """An expectation of a rule test: the samples that a query gives at the time of a column."""

    column: int
    query: str
    expected: list[str] = field(default_factory=list)


def parse_page(text):
    """Reads a page of /metrics: the value of each series, by its name and labels."""
    samples = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            found = SAMPLE.fullmatch(line)
            if not found:
                raise RunFailed(f"/metrics has a line that is no sample: {line!r}")
            samples[found[1], found[2] or ""] = float(found[3])
    return samples


def find_moments(page):
    """Returns the metrics that specs/metrics.md gives in seconds since 1970."""
    rows = re.findall(r"^\| `(mycora_\w+)` \| \w+ \| ([^|]*) \|", page.read_text(), re.M)
    return {name for name, unit in rows if unit == "seconds since 1970"}


def format_value(value):
    """Returns a value in promtool's notation of series."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() else repr(value)


class Recording:
    """Samples of all targets; one column for each round of scrapes.

    A target that does not answer has `up` 0, and its series end with a stale marker, as do series that a page no longer
    has: so Prometheus writes it.
    """

    def __init__(self, moments):
        self.moments = moments
        self.begun = None
        self.columns = 0
        self.series = {}
        # What each target showed in the last column.
        self.shown = {}

    def add(self, pages, now):
        """Appends a column: the samples of each target, or None of one that did not answer, as of a time since 1970."""
        self.begun = now if self.begun is None else self.begun
        for target, samples in pages.items():
            labels = f'job="{JOB}", instance="{target.instance}"'
            before, shown = self.shown.get(target, {}), {}
            for (name, own), value in (samples or {}).items():
                shown[f"{name}{{{labels}{', ' if own else ''}{own}}}"] = value
            shown[f"up{{{labels}}}"] = 0.0 if samples is None else 1.0
            for series in before.keys() - shown.keys():
                self._put(series, STALE)
            for series, value in shown.items():
                self._put(series, format_value(self._shift(series, value)))
            self.shown[target] = shown
        self.columns += 1

    def _put(self, series, value):
        values = self.series.setdefault(series, [])
        values += [MISSING] * (self.columns - len(values))
        values.append(value)

    def _shift(self, series, value):
        """Moves a moment to the clock of rule tests, where `time()` is 0 at the first column. 0 says that there is no moment."""
        if series.partition("{")[0] in self.moments and value != 0:
            return value - self.begun
        return value

    def values(self, name):
        """Returns the values of all series of a metric in the last column, as they were scraped."""
        shown = (sample for samples in self.shown.values() for sample in samples.items())
        return [value for series, value in shown if series.partition("{")[0] == name]

    def latest(self, name):
        """Returns the sum of these values."""
        return sum(self.values(name))

    def until(self, column):
        """Returns the series as if everything had stayed as it was before a column: a run without its fault."""
        held = {}
        for series, values in self.series.items():
            values = values[:column]
            if len(values) == column and values[-1] not in (STALE, MISSING):
                values += [values[-1]] * (self.columns - column)
            if values:
                held[series] = values
        return held


class Scraper:
    """Scrapes targets at a steady pace into recordings, one after the other, in a thread of its own."""

    def __init__(self, targets, token, moments):
        self.targets, self.token, self.moments = targets, token, moments
        self.recording = Recording(moments)
        self.changed = threading.Condition()
        self.stopped = threading.Event()
        self.failure = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()

    def begin(self):
        """Begins a new recording."""
        with self.changed:
            self.recording = Recording(self.moments)
            return self.recording

    def wait(self, what, condition, secs_max):
        """Waits until the recording meets a condition; returns its number of columns then."""
        with self.changed:
            met = self.changed.wait_for(lambda: self.failure or condition(self.recording), secs_max)
            if self.failure:
                raise RunFailed(f"scraping ended: {self.failure}")
            if not met:
                raise RunFailed(f"{what}: not within {secs_max} s")
            return self.recording.columns

    def latest(self, name):
        """Returns the sum of a metric in the last column."""
        with self.changed:
            return self.recording.latest(name)

    def wait_columns(self, columns):
        """Waits for so many further columns."""
        with self.changed:
            end = self.recording.columns + columns
        return self.wait(f"{columns} scrapes", lambda recording: recording.columns >= end, 60 + columns * PACE_SECS)

    def _run(self):
        due = time.monotonic()
        while not self.stopped.wait(max(0, due - time.monotonic())):
            due = max(due + PACE_SECS, time.monotonic())
            now = time.time()
            try:
                pages = {target: self._scrape(target) for target in self.targets}
            except (RunFailed, ValueError) as failure:
                self.failure = failure
            with self.changed:
                if not self.failure:
                    self.recording.add(pages, now)
                self.changed.notify_all()
            if self.failure:
                return

    def _scrape(self, target):
        connection = http.client.HTTPConnection(target.instance, timeout=SCRAPE_TIMEOUT_SECS)
        try:
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return parse_page(text) if answer.status == 200 else None


def alert(name, severity, **labels):
    """Returns the series of an alert that fires."""
    labels = {"alertname": name, "alertstate": "firing", "job": JOB, "severity": severity, **labels}
    return "ALERTS{" + ", ".join(f"{label}={json.dumps(value)}" for label, value in sorted(labels.items())) + "}"


def firing_at(column, severity, expected):
    """Expects that exactly these alerts of a severity fire at a column."""
    return Check(column, f'ALERTS{{alertstate="firing", severity="{severity}"}}', expected)


def never_fired_by(column):
    """Expects that no alert of any severity fired at any moment up to a column."""
    return Check(column, f'count_over_time(ALERTS{{alertstate="firing"}}[{column * INTERVAL_SECS + 1}s])')


def write_rule_test(path, name, rules, series, checks):
    """Writes a file for `promtool test rules`, in JSON, which is YAML as well."""
    test = {
        "name": name,
        "interval": f"{INTERVAL_SECS}s",
        "input_series": [{"series": one, "values": " ".join(values)} for one, values in sorted(series.items())],
        "promql_expr_test": [
            {
                "expr": check.query,
                "eval_time": f"{check.column * INTERVAL_SECS}s",
                "exp_samples": [{"labels": labels, "value": 1} for labels in check.expected],
            }
            for check in checks
        ],
    }
    content = {"rule_files": [str(rules)], "evaluation_interval": f"{INTERVAL_SECS}s", "tests": [test]}
    path.write_text(json.dumps(content, indent=1))


def run_promtool(path):
    """Runs a rule test; returns what promtool finds wrong, or nothing."""
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, timeout=120, check=False)
    return None if done.returncode == 0 else f"{done.stdout}{done.stderr}".strip() or f"promtool ended with {done.returncode}"
