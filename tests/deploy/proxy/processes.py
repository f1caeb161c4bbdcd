"""Processes of a test: each has a log, and ends with the test."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

PATIENCE_SECS = 60
POLL_SECS = 0.05


class Overdue(Exception):
    """A condition that was not met in time."""


def wait_until(what, condition, secs=PATIENCE_SECS):
    """Waits for a condition; returns what it returned."""
    deadline = time.monotonic() + secs
    while not (met := condition()):
        if time.monotonic() >= deadline:
            raise Overdue(f"{what}: not within {secs} s")
        time.sleep(POLL_SECS)
    return met


# Ports that were given out already.
given = set()


def free_ports(count):
    """Ports of this machine, different ones at each call, each free together with the one 100 further on."""
    ports = []
    with contextlib.ExitStack() as held:
        while len(ports) < count:
            port = held.enter_context(socket.socket())
            ops = held.enter_context(socket.socket())
            port.bind(("127.0.0.1", 0))
            number = port.getsockname()[1]
            try:
                ops.bind(("127.0.0.1", number + 100))
            except (OSError, OverflowError):
                continue
            if given.isdisjoint({number, number + 100}):
                given.update({number, number + 100})
                ports.append(number)
    return ports


def is_ready(ops_port):
    """Returns whether /readyz of an ops port answers 200."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ops_port}/readyz", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


class Process:
    """A program with its log in a file."""

    def __init__(self, name, command, work, env=None):
        self.name, self.command, self.env = name, [str(part) for part in command], env
        self.log = pathlib.Path(work) / f"{name}.log"
        self.running = None

    def start(self):
        """Starts it; also once more, after its end."""
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **(self.env or {})}
            )
        return self

    @property
    def pid(self):
        return self.running.pid

    def has_ended(self):
        return self.running is None or self.running.poll() is not None

    def stop(self):
        """Asks it to end, and waits for that; kills what does not end."""
        if self.has_ended():
            return
        self.running.send_signal(signal.SIGTERM)
        try:
            self.running.wait(PATIENCE_SECS)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()
            raise Overdue(f"{self.name} did not end after SIGTERM") from None

    def wait_for(self, what, condition):
        """Waits for a condition that does not come when the process ends."""
        return wait_until(f"{self.name} {what}", lambda: condition() or self.ended_early(what))

    def ended_early(self, what):
        if self.has_ended():
            raise Overdue(f"{self.name} ended before it {what}:\n{self.tail()}")
        return False

    def tail(self, lines=15):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def parent_of(pid):
    """The parent of a process; None when there is no such process."""
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in brackets may hold blanks.
    state, parent = status.rsplit(")", 1)[1].split()[:2]
    return None if state == "Z" else int(parent)


def children_of(pid):
    """The processes that a process has started, and that live."""
    return {int(entry) for entry in os.listdir("/proc") if entry.isdigit() and parent_of(entry) == pid}


def connections_of(pid, port):
    """TCP connections of a process to a port, each by the inode of its socket."""
    own = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(os.readlink(fd))
    found = set()
    for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        remote, state, inode = fields[2], fields[3], fields[9]
        if state == "01" and int(remote.split(":")[1], 16) == port and f"socket:[{inode}]" in own:
            found.add(inode)
    return found
