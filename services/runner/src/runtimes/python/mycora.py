"""What a python job can say to Mycora, and learn from it."""

import json
import os
import sys

__all__ = ["result", "inputs", "env", "log"]

_given = {}


def result(**values):
    """Gives results. May be called again: keys are added, or replaced."""
    merged = dict(_given, **values)
    text = json.dumps(merged, ensure_ascii=False, default=str)
    path = os.environ["MYCORA_RESULT"]
    # Under another name first: a script that is killed here leaves what it gave before.
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)
    _given.update(values)


def inputs():
    """The results of the nodes this one depends on: {node: {key: value}}."""
    with open(os.environ["MYCORA_INPUTS"], encoding="utf-8") as file:
        return json.load(file)


def env(name=None, default=None):
    """One environment variable, or all of them."""
    return dict(os.environ) if name is None else os.environ.get(name, default)


def log(*values):
    """Writes a line to the job's log at once."""
    print(*values, file=sys.stderr, flush=True)
