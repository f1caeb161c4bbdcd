"""Compares the JSON Schema of flow files with the reader that it was made from."""

import copy
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema
import yaml

# A flow with every key of a job that has a script of its own.
WHOLE = {
    "name": "whole",
    "context": 1,
    "env": {"LANG": "C.UTF-8", "VERSION": 1.0},
    "fail_fast": True,
    "deadline": "7d",
    "cancel_timeout": 30,
    "jobs": {
        "first": {"script_type": "python", "script": "print(1)", "outputs": ["part.txt"]},
        "second": {
            "script_type": "shell",
            "script_file": "second.sh",
            "files": {"book.txt": "second.sh"},
            "depends": ["first"],
            "run_if": "NONE_FAILED",
            "when": "results.first.rows > 0",
            "prerequisites": ["signal:go"],
            "allow_failure": False,
            "timeout": "90s",
            "timeout_queue": 5,
            "timeout_ack": "5m",
            "timeout_result": "2h",
            "retries": 3,
            "backoff": {"initial": 0.5, "multiplier": 2, "max": 10},
            "no_retry_exit_codes": [2, 64],
            "losses": 1,
            "loss_backoff": {"initial": 1},
            "idempotent": True,
            "priority": 1,
            "isolation": "confined",
            "network": False,
            "env": {"ROWS": "${{ results.first.rows }}"},
            "target": {"runner": 1, "group": "gpu", "instance": 0, "labels": {"zone": "a"}},
        },
        "third": {"created_job": 4, "dependends": ["second"]},
    },
}

# What makes it wrong: where, and which value is put there. `None` takes the key away.
WRONG = [
    (["name"], None),
    (["name"], "two words"),
    (["jobs"], None),
    (["jobs"], {}),
    (["jobs"], []),
    (["colour"], "red"),
    (["context"], 0),
    (["context"], "one"),
    (["env"], ["A=1"]),
    (["env", "LIST"], [1]),
    (["fail_fast"], "yes please"),
    (["deadline"], "soon"),
    (["deadline"], -1),
    (["jobs", "two words"], {"script_type": "shell", "script": "true"}),
    (["jobs", "first", "script_type"], None),
    (["jobs", "first", "script_type"], "cobol"),
    (["jobs", "first", "script"], None),
    (["jobs", "first", "script_file"], "second.sh"),
    (["jobs", "first", "created_job"], 3),
    (["jobs", "first", "needs"], []),
    (["jobs", "first", "outputs"], "part.txt"),
    (["jobs", "second", "depends"], "first"),
    (["jobs", "second", "dependends"], ["first"]),
    (["jobs", "second", "run_if"], "SOMETIMES"),
    (["jobs", "second", "prerequisites"], [{"signal": "go"}]),
    (["jobs", "second", "prerequisites"], [f"signal:s{n}" for n in range(17)]),
    (["jobs", "second", "allow_failure"], 1),
    (["jobs", "second", "timeout"], "1 hour"),
    (["jobs", "second", "timeout"], 31 * 24 * 3600),
    (["jobs", "second", "retries"], 101),
    (["jobs", "second", "retries"], -1),
    (["jobs", "second", "retries"], 1.5),
    (["jobs", "second", "backoff"], 3),
    (["jobs", "second", "backoff", "first"], 3),
    (["jobs", "second", "backoff", "initial"], "quick"),
    (["jobs", "second", "no_retry_exit_codes"], [256]),
    (["jobs", "second", "losses"], 101),
    (["jobs", "second", "priority"], 3),
    (["jobs", "second", "isolation"], "total"),
    (["jobs", "second", "network"], "some"),
    (["jobs", "second", "target", "zone"], "a"),
    (["jobs", "second", "target", "group"], "two words"),
    (["jobs", "second", "target", "labels"], ["zone"]),
    (["jobs", "third", "created_job"], 0),
    (["jobs", "third", "env"], {"A": "b"}),
    (["jobs", "third", "script"], "true"),
]


def changed(where, value):
    flow = copy.deepcopy(WHOLE)
    inside = flow
    for key in where[:-1]:
        inside = inside[key]
    if value is None:
        del inside[where[-1]]
    else:
        inside[where[-1]] = value
    return flow


def main(mycora, page):
    schema = json.loads(subprocess.run([mycora, "flow", "schema"], check=True, capture_output=True).stdout)
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    passed = failed = 0

    with tempfile.TemporaryDirectory() as place:
        for name in ["second.sh", "book.txt"]:
            Path(place, name).write_text("true\n")

        def reader_takes(flow):
            Path(place, "flow.yaml").write_text(flow if isinstance(flow, str) else json.dumps(flow))
            command = [mycora, "flow", "validate", "flow.yaml"]
            return subprocess.run(command, cwd=place, capture_output=True, check=False).returncode == 0

        def expect(what, wanted, flow):
            nonlocal passed, failed
            content = yaml.safe_load(flow) if isinstance(flow, str) else flow
            problems = [error.message for error in validator.iter_errors(content)]
            verdicts = {"schema": not problems, "reader": reader_takes(flow)}
            if set(verdicts.values()) == {wanted}:
                passed += 1
            else:
                failed += 1
                print(f"FAIL {what}: {'good' if wanted else 'bad'} by intent, and {verdicts}: {problems[:3]}")

        expect("a flow with every key", True, WHOLE)
        examples = re.findall(r"```yaml\n(.*?)```", Path(page).read_text(), re.DOTALL)
        assert len(examples) >= 2, f"{page} has examples"
        for number, example in enumerate(examples, 1):
            expect(f"example {number} of the page", True, example)
        for where, value in WRONG:
            expect(f"{'.'.join(where)}: {value}", False, changed(where, value))

    print(f"{passed} passed, {failed} failed")
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
