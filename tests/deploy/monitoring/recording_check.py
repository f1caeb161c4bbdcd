#!/usr/bin/env python3
"""Checks what recording.py makes of pages of /metrics, through promtool: tests/deploy/monitoring/recording_check.py"""

import pathlib
import sys
import tempfile

import recording
from recording import Check, Recording, Target

ROOT = pathlib.Path(__file__).resolve().parents[3]
MOMENT = "mycora_tls_certificate_expiry_seconds"
SIGNED = "mycora_gateway_signing_certificate_expiry_seconds"
NOW = 1_700_000_000.25
ONE, OTHER = Target("router", "127.0.0.1:1"), Target("storage", "127.0.0.1:2")
ADDED = 'instance="127.0.0.1:1", job="mycora"'
PAGE = f"""# HELP a_total Some text
# TYPE a_total counter
a_total 3
small 1.5e-05
large 20000000000
bucket{{le="+Inf"}} 7
odd NaN
endless +Inf
quoted{{text="a\\\\b \\"c\\" {{d}}"}} 1
{MOMENT}{{file="pki/a.pem"}} 1700000100.25
{SIGNED} 0
"""


def value_of(column, query, value):
    """Expects one sample without labels and with this value, as a query that answers 1 for it."""
    return Check(column, f"({query}) == bool {value}", ["{}"])


def labeled(column, series):
    """Expects a series under exactly these labels; its value is 1."""
    return Check(column, series.partition("{")[0], [series])


def record(pages):
    """Records pages, a column each and a scrape interval apart."""
    made = Recording(recording.find_moments(ROOT / "specs/metrics.md"))
    for column, texts in enumerate(pages):
        samples = {target: text if text is None else recording.parse_page(text) for target, text in texts.items()}
        made.add(samples, NOW + column * recording.PACE_SECS)
    return made


def cases():
    """Names, recordings, and what a rule test finds in them."""
    kept = record([{ONE: PAGE}] * 2)
    yield "values are kept", kept, [
        value_of(1, "sum(a_total)", 3),
        value_of(1, "sum(small)", "1.5e-05"),
        value_of(1, "sum(large)", 20000000000),
        value_of(1, 'sum(bucket{le="+Inf"})', 7),
        value_of(1, "sum(endless)", "Inf"),
        value_of(1, "count(odd)", 1),
        Check(1, "odd == odd"),
    ]
    yield "labels are kept, and those of the target added", kept, [
        labeled(1, f'quoted{{{ADDED}, text="a\\\\b \\"c\\" {{d}}"}}'),
        labeled(1, f"up{{{ADDED}}}"),
    ]
    yield "moments move to the clock of the test, and 0 stays", kept, [
        value_of(0, f"sum({MOMENT}) - time()", 100),
        value_of(1, f"sum({MOMENT}) - time()", 100 - recording.INTERVAL_SECS),
        value_of(1, f"sum({SIGNED})", 0),
    ]
    down = record([{ONE: PAGE, OTHER: PAGE}, {ONE: None, OTHER: PAGE}, {ONE: PAGE, OTHER: PAGE}])
    yield "a target that is down has no series but up, until it is back", down, [
        value_of(0, "count(a_total)", 2),
        value_of(1, "count(a_total)", 1),
        value_of(1, "sum(up)", 1),
        value_of(1, f"sum(up{{{ADDED}}})", 0),
        value_of(2, "count(a_total)", 2),
    ]
    gone = record([{ONE: PAGE}, {ONE: "b 1\n"}, {ONE: "b 1\n"}, {ONE: "b 1\nc 4\n"}])
    yield "a series that a page has no longer ends, and one that it has later begins", gone, [
        Check(1, "a_total", []),
        Check(2, "c", []),
        value_of(3, "sum(c)", 4),
    ]


def main():
    passed = failed = 0

    def note(name, wrong):
        nonlocal passed, failed
        passed, failed = passed + (not wrong), failed + bool(wrong)
        if wrong:
            print(f"FAIL recording: {name}: {wrong}")

    with tempfile.TemporaryDirectory() as place:
        path = pathlib.Path(place) / "recording.json"

        def find(name, series, checks):
            recording.write_rule_test(path, name, ROOT / "deploy/monitoring/alerts.yaml", series, checks)
            return recording.run_promtool(path)

        for name, made, checks in cases():
            note(name, find(name, made.series, checks))
            # Each expectation of a sample can fail: none holds of an empty recording.
            idle = [check.query for check in checks if check.expected and not find(name, {}, [check])]
            note(f"{name}, and only then", ", ".join(idle))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
