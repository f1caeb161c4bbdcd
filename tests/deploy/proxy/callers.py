"""Callers that go through a proxy: single calls, watches and load."""

import json
import os
import pathlib
import shutil
import subprocess
import threading

from processes import Process, connections_of, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[3]
GRPCURL = "1.9.4"
FLOW = "name: {name}\njobs:\n  only: {{ script_type: shell, script: 'echo who=world >> \"$MYCORA_RESULT\"' }}\n"
LOADERS = 3


def grpcurl():
    """The program; None where it is not."""
    cache = os.environ.get("MYCORA_CI_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "mycora-ci"
    )
    return shutil.which("grpcurl") or shutil.which("grpcurl", path=f"{cache}/grpcurl-{GRPCURL}")



class Caller:
    """grpcurl as a caller that shows what it is told to."""

    def __init__(self, program):
        self.program = program

    def who_am_i(self, address, *flags, headers=()):
        """Returns the identity that a service sees, or the error."""
        shown = [word for header in headers for word in ("-H", header)]
        command = [
            self.program, "-connect-timeout", "10", *map(str, flags), *shown, "-import-path", ROOT / "proto", "-proto",
            "mycora/v1/actor_service.proto", "-d", "{}", address, "mycora.v1.ActorService/WhoAmI",
        ]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        return json.loads(ended.stdout)["spiffeId"] if ended.returncode == 0 else ended.stdout.strip()

    def internal(self, address, *flags, headers=()):
        """Makes a call that only services may make; returns the error."""
        shown = [word for header in headers for word in ("-H", header)]
        command = [
            self.program, *map(str, flags), *shown, "-import-path", ROOT / "proto", "-proto",
            "mycora/internal/v1/report_intake.proto", "-d", "{}", address,
            "mycora.internal.v1.ReportIntakeService/SubmitFor",
        ]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        return "" if ended.returncode == 0 else ended.stdout.strip()

    def lists(self, address, *flags):
        """Lists the services by reflection."""
        ended = subprocess.run(
            [self.program, *map(str, flags), address, "list"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
        )
        return ended.stdout


class Watch:
    """`mycora flow watch --all` that goes on."""

    def __init__(self, command_line, port, work, name):
        arguments = command_line.arguments("flow", "watch", "--all", "--output", "json")
        self.process, self.port = Process(name, arguments, work).start(), port
        self.process.wait_for("has the snapshot", lambda: any("snapshotEnd" in answer for answer in self.answers()))
        self.connections = connections_of(self.process.pid, port)

    def answers(self):
        lines = self.process.log.read_text(errors="replace").split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def has_end_of(self, name):
        flows = [answer["flow"] for answer in self.answers() if "flow" in answer]
        return any(flow["name"] == name and flow["status"] == "FLOW_STATUS_FINISHED" for flow in flows)

    def wait_for_end_of(self, name):
        self.process.wait_for(f"shows the end of {name}", lambda: self.has_end_of(name))

    def keeps_its_connection(self):
        """Returns whether the watch has its first connection: one that was cut would have resumed on another one."""
        return bool(self.connections) and self.connections <= connections_of(self.process.pid, self.port)

    def stop(self):
        self.process.stop()


class Load:
    """Commands that are called again and again, meanwhile."""

    def __init__(self, command_line, *commands):
        self.command_line, self.commands = command_line, commands
        self.calls, self.failures, self.over = 0, [], threading.Event()
        self.threads = [threading.Thread(target=self.go_on) for _ in range(LOADERS)]

    def go_on(self):
        while not self.over.is_set():
            for command in self.commands:
                problem = self.problem_of(command)
                self.calls += 1
                if problem:
                    self.failures.append(f"{' '.join(map(str, command))}: {problem}")

    def problem_of(self, command):
        try:
            ended = self.command_line.call(*command)
        except subprocess.TimeoutExpired as overdue:
            return f"no end within {overdue.timeout} s"
        return (ended.stdout.strip() or f"it ended with {ended.returncode}") if ended.returncode else ""

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_error):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def wait_for_more(self, count=20):
        """Waits until this many calls were made from now on."""
        target = self.calls + count
        wait_until(f"{count} more calls", lambda: self.calls >= target)

    def check(self, counts, what):
        failed = f"{len(self.failures)} of {self.calls} failed, such as {self.failures[0]}" if self.failures else ""
        counts.check(f"{what}: {self.calls} commands, {len(self.failures)} failed", failed or ("" if self.calls else "there were none"))


def flow_file(work, name):
    path = work / f"{name}.yaml"
    path.write_text(FLOW.format(name=name))
    return path


def run_flow(command_line, work, name):
    return command_line.need("flow", "submit", flow_file(work, name), "--watch")


class SingleCalls:
    """Calls of grpcurl, which repeats none, one after the other; none without grpcurl."""

    def __init__(self, caller, address, ca, command_line):
        self.caller, self.address, self.ca, self.command_line = caller, address, ca, command_line
        self.calls, self.failures, self.over = 0, [], threading.Event()
        self.thread = threading.Thread(target=self.go_on)

    def go_on(self):
        while self.caller and not self.over.is_set():
            token = self.command_line.need("token", "--header").strip()
            found = self.caller.who_am_i(self.address, "-cacert", self.ca, headers=[token])
            self.calls += 1
            if not found.startswith("spiffe://"):
                self.failures.append(found)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_error):
        self.over.set()
        self.thread.join()

    def reasons(self):
        """The messages of those that failed, each once."""
        return sorted({line.strip() for found in self.failures for line in found.splitlines() if "Message:" in line})
