"""Counting checks."""

import contextlib
import traceback

from processes import Overdue
from suites import CommandFailed


class Counts:
    """Counts of the checks that passed and that failed."""

    def __init__(self):
        self.passed = self.failed = 0

    def check(self, what, problem):
        """Counts a check, which failed when there is a problem."""
        if problem:
            self.failed += 1
            print(f"FAIL {what}: {problem}", flush=True)
        else:
            self.passed += 1
            print(f"ok   {what}", flush=True)

    @contextlib.contextmanager
    def part(self, name):
        """Runs a part of the test, which fails when something stops it."""
        try:
            yield
        except (CommandFailed, Overdue) as problem:
            self.check(name, problem)
        except Exception:
            self.check(name, traceback.format_exc())


def expect(found, wanted):
    """Describes the problem of a text that lacks another one."""
    return "" if wanted in found else f"it is {found!r}, not {wanted!r}"
