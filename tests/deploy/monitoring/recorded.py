#!/usr/bin/env python3
"""Breaks real processes, and sees the alerts of the fault in promtool, fed by the metrics of that run: tests/deploy/monitoring/recorded.py

deploy/local/up.sh starts every service as a process of its own. While faults are planted and mended, the ops port of each process is
scraped as Prometheus does. Each recording becomes the input of a rule test: no alert fires before its fault, exactly the critical
alerts of the fault fire during it, and none is left once it is mended. The same test has to fail on the recording without the fault.

MYCORA_BIN: folder with the programs; default target/release, or target/debug where only that was built.
"""

import argparse
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Callable

import recording
from recording import INTERVAL_SECS, RunFailed, Scraper, Target, alert

ROOT = pathlib.Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy/monitoring/alerts.yaml"
# Name and number of each service, as deploy/local/up.sh has them: its ops port is 100 above.
SERVICES = {
    "storage": 1, "scheduler": 2, "router": 3, "runner-registry": 4, "mycelium-gateway": 5, "supervisor": 6, "runner": 7
}
OPS_OFFSET = 100
# The whole run ends within this time, whatever happens.
RUN_SECS_MAX = 230
COMMAND_SECS_MAX = 90
# Time in the rule test for which everything is well before a fault: longer than the windows and delays of most critical rules.
HEALTHY_SECS = 315
# The bound of Redis in the run that fills it, and the parts of it that are full after each step: at last beyond 80 %, and not all.
# Each step measures what a job takes, for the next one.
REDIS_BYTES_MAX, STEPS = 12 * 1024 * 1024, (0.6, 0.88)
# Script that prints as many bytes as storage keeps of the output of an attempt, and the number of such jobs before the first step.
PRINTS, SAMPLE_JOBS = "yes 0123456789 | head -c 65536", 16


def find_programs():
    """Returns the folder with the programs, or nothing."""
    folders = [ROOT / "target/release", ROOT / "target/debug"]
    if named := os.environ.get("MYCORA_BIN"):
        folders = [pathlib.Path(named).resolve()]
    programs = ["mycora", *(f"mycora-{service}" for service in SERVICES)]
    return next((folder for folder in folders if all(os.access(folder / name, os.X_OK) for name in programs)), None)


def find_clock():
    """Returns the library that gives a process another clock, or nothing: `apt-get install faketime`."""
    return next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


def find_port_base():
    """Returns a number after which the ports of all services are free."""
    numbers = [number + offset for number in SERVICES.values() for offset in (0, OPS_OFFSET)]
    for _ in range(100):
        base, sockets = random.randrange(20000, 32000), []
        try:
            for number in numbers:
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", base + number))
            return base
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise RunFailed("no free ports")


class Suite:
    """Processes of deploy/local/up.sh in a directory, which down.sh ends."""

    def __init__(self, folder, programs):
        self.folder, self.programs, self.base = folder, programs, find_port_base()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MYCORA_")}
        self.environment |= {"MYCORA_BIN": str(programs), "MYCORA_PORT_BASE": str(self.base), "MYCORA_TYPES": "shell"}

    def targets(self):
        """Returns the ops port of each process."""
        return [Target(service, self.instance(service)) for service in SERVICES]

    def instance(self, service):
        """Returns the label `instance` of a service: its ops port."""
        return f"127.0.0.1:{self.base + OPS_OFFSET + SERVICES[service]}"

    def token(self):
        """Returns what readers of /metrics show."""
        return (self.folder / "ops.token").read_text().strip()

    def run(self, *command, fails=False, days_ago=0):
        """Runs a command, which succeeds, or fails, as expected; returns what it prints. Its clock may be days behind."""
        clock = {"LD_PRELOAD": str(find_clock()), "FAKETIME": f"-{days_ago}d"} if days_ago else {}
        done = subprocess.run(
            [str(part) for part in command], env=self.environment | clock, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_SECS_MAX, check=False,
        )
        if (done.returncode != 0) != fails:
            raise RunFailed(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout.strip()}")
        return done.stdout

    def pki(self, *arguments, days_ago=0):
        """Runs a command of the suite's certificate authority."""
        self.run(self.programs / "mycora", "pki", *arguments, "--dir", self.folder / "pki", days_ago=days_ago)

    def start(self):
        """Starts all processes, or those that died."""
        self.run(ROOT / "deploy/local/up.sh", self.folder)

    def stop(self):
        """Ends all processes."""
        self.run(ROOT / "deploy/local/down.sh", self.folder)

    def submit(self, name, script, jobs, fails=False):
        """Submits a flow of equal jobs, and waits for its end; it completes, or is refused."""
        path = self.folder / f"{name}.yaml"
        lines = [f"  job-{number}: {{ script_type: shell, script: '{script}' }}" for number in range(jobs)]
        path.write_text("\n".join([f"name: {name}", "jobs:", *lines, ""]))
        profile = self.folder / "client.toml"
        return self.run(self.programs / "mycora", "--config", profile, "flow", "submit", path, "--watch", fails=fails)

    def kill(self, service):
        """Kills a process by the number that up.sh noted, if it has not ended since."""
        pid, since = (self.folder / "run" / f"{service}.pid").read_text().split()
        stat = pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
        if stat[19] != since:
            raise RunFailed(f"{service} has ended before it was killed")
        os.kill(int(pid), signal.SIGKILL)

    def bound_redis(self, bytes_max):
        """Sets maxmemory of Redis."""
        with socket.socket(socket.AF_UNIX) as redis:
            redis.settimeout(COMMAND_SECS_MAX)
            redis.connect(str(self.folder / "redis.sock"))
            redis.sendall(f"CONFIG SET maxmemory {bytes_max}\r\n".encode())
            if not (answer := redis.recv(100)).startswith(b"+OK"):
                raise RunFailed(f"Redis does not take maxmemory {bytes_max}: {answer!r}")


@dataclass
class Fault:
    """A fault of a suite: how it comes and goes, and the critical alerts that it raises."""

    name: str
    prepare: Callable[[], None]
    plant: Callable[[], None]
    # What the metrics of the run show once the fault is there, and once it is mended.
    is_seen: Callable[[recording.Recording], bool]
    seen_secs_max: int
    mend: Callable[[], None]
    is_mended: Callable[[recording.Recording], bool]
    # Times in the rule test after which the alerts fire, and after which none is left.
    lasts_secs: int
    ends_secs: int
    alerts: list[str]


def ended_certificate(suite, _):
    """Certificate of a router that ended 19 days ago."""
    file, expiry = suite.folder / "pki/router.pem", "mycora_tls_certificate_expiry_seconds"

    return Fault(
        name="a certificate that has ended",
        prepare=lambda: None,
        plant=lambda: suite.pki("issue", "service/router", "--days", 1, days_ago=20),
        is_seen=lambda recorded: min(recorded.values(expiry)) < recorded.begun,
        seen_secs_max=20,
        mend=lambda: suite.pki("issue", "service/router"),
        is_mended=lambda recorded: min(recorded.values(expiry)) > recorded.begun + 14 * 86400,
        lasts_secs=15 * 60 + 2 * INTERVAL_SECS,
        ends_secs=2 * INTERVAL_SECS,
        alerts=[alert("MycoraCertificateExpires", "critical", instance=suite.instance("router"), file=str(file))],
    )


def full_redis(suite, scraper):
    """Redis that the output of a flow's jobs fills."""
    used_bytes, refused = "mycora_storage_redis_used_bytes", "mycora_storage_refused_full_total"

    def used_share(recorded):
        return recorded.latest(used_bytes) / (recorded.latest("mycora_storage_redis_max_bytes") or float("inf"))

    def used():
        # Storage looks at Redis every second.
        scraper.wait_columns(4)
        return scraper.latest(used_bytes)

    def prepare():
        suite.bound_redis(REDIS_BYTES_MAX)
        scraper.wait("storage sees the bound", lambda recorded: 0 < used_share(recorded) < 0.6, 20)

    def plant():
        before, jobs = used(), SAMPLE_JOBS
        suite.submit("sample", PRINTS, jobs)
        for step in STEPS:
            after = used()
            bytes_of_job = (after - before) / jobs
            before, jobs = after, max(1, round((REDIS_BYTES_MAX * step - after) / bytes_of_job))
            suite.submit("fill", PRINTS, jobs)
        scraper.wait("Redis is filled", lambda recorded: used_share(recorded) > 0.8, 20)
        if "the store is full" not in (said := suite.submit("refused", "true", 1, fails=True)):
            raise RunFailed(f"a submission to a full Redis ends otherwise than refused: {said.strip()}")

    def mend():
        suite.bound_redis(0)
        scraper.wait("storage sees that the bound is gone", lambda recorded: used_share(recorded) == 0, 20)
        suite.submit("after", "true", 1)

    return Fault(
        name="a full Redis",
        prepare=prepare,
        plant=plant,
        is_seen=lambda recorded: recorded.latest(refused) > 0,
        seen_secs_max=20,
        mend=mend,
        is_mended=lambda recorded: used_share(recorded) == 0,
        lasts_secs=60 + 2 * INTERVAL_SECS,
        ends_secs=5 * 60 + 2 * INTERVAL_SECS,
        alerts=[alert("MycoraRedisNearlyFull", "critical"), alert("MycoraSubmissionsRefusedFull", "critical")],
    )


def killed_supervisor(suite, _):
    """Supervisor that is killed, the only one."""
    live = "mycora_registry_runners_live"

    def mend():
        suite.start()
        suite.submit("after", "true", 1)

    return Fault(
        name="a killed supervisor",
        prepare=lambda: None,
        plant=lambda: suite.kill("supervisor"),
        is_seen=lambda recorded: recorded.latest(live) == 0,
        seen_secs_max=60,
        mend=mend,
        is_mended=lambda recorded: recorded.latest(live) == 1 and recorded.latest("up") == len(SERVICES),
        lasts_secs=2 * 60 + 2 * INTERVAL_SECS,
        ends_secs=2 * INTERVAL_SECS,
        alerts=[
            alert("MycoraProcessDown", "critical", instance=suite.instance("supervisor")),
            alert("MycoraServiceMissing", "critical", service="supervisor"),
            alert("MycoraNoRunnerAlive", "critical"),
        ],
    )


def record(suite, scraper, fault):
    """Records a fault from before it is planted until it is mended; returns the recording, the fault's column, and checks."""
    fault.prepare()
    recorded = scraper.begin()
    suite.submit("before", "true", 1)
    planted = scraper.wait_columns(HEALTHY_SECS // INTERVAL_SECS)
    fault.plant()
    scraper.wait(f"{fault.name} shows in metrics", fault.is_seen, fault.seen_secs_max)
    lasted = scraper.wait_columns(fault.lasts_secs // INTERVAL_SECS)
    fault.mend()
    scraper.wait(f"{fault.name} is mended", fault.is_mended, COMMAND_SECS_MAX)
    ended = scraper.wait_columns(fault.ends_secs // INTERVAL_SECS)
    # What is scraped from now on belongs to another recording.
    scraper.begin()
    before = recording.never_fired_by(planted - 1)
    during = recording.firing_at(lasted - 1, "critical", fault.alerts)
    after = recording.firing_at(ended - 1, "critical", [])
    return recorded, planted, [before, during, after]


def judge(fault, recorded, planted, checks, folder):
    """Runs the rule tests of a recording; returns what is wrong with each."""
    path = folder / f"{fault.name.replace(' ', '-')}.json"
    recording.write_rule_test(path, fault.name, RULES, recorded.series, checks)
    yield fault.name, recording.run_promtool(path)
    path = path.with_name(f"without-{path.name}")
    recording.write_rule_test(path, f"without {fault.name}", RULES, recorded.until(planted), [checks[1]])
    wrong = None if recording.run_promtool(path) else "its alerts fire in the recording without it as well"
    yield f"without {fault.name}", wrong


def run_faults(suite, faults, folder):
    """Records each fault and runs its rule tests; yields names and what is wrong."""
    moments = recording.find_moments(ROOT / "specs/metrics.md")
    with Scraper(suite.targets(), suite.token(), moments) as scraper:
        scraper.wait_columns(1)
        for make in faults:
            fault = make(suite, scraper)
            try:
                yield from judge(fault, *record(suite, scraper, fault), folder)
            except (RunFailed, subprocess.TimeoutExpired) as error:
                yield fault.name, str(error)
                return


def missing_needs():
    """Names what the run needs and does not find."""
    if not find_programs():
        yield f"the programs in {os.environ.get('MYCORA_BIN', 'target/release or target/debug')}"
    yield from (program for program in ("promtool", "redis-server") if not shutil.which(program))


def scripts_pass(folder):
    """Says whether users of contexts, as whom scripts run where the suite is root, may pass through a folder."""
    return os.getuid() != 0 or all(one.stat().st_mode & 1 for one in (folder, *folder.parents))


def run_suite(faults, keep):
    """Starts a suite, records these faults, and ends it; returns names and what is wrong."""
    place = pathlib.Path(tempfile.gettempdir()).resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mycora-recorded.", dir=place if scripts_pass(place) else "/tmp"))
    folder.chmod(0o711)
    tests = keep or folder
    tests.mkdir(parents=True, exist_ok=True)
    suite, results = Suite(folder / "suite", find_programs()), []
    try:
        # The authority is older than the certificate that ends.
        suite.pki("init", days_ago=30 if ended_certificate in faults else 0)
        suite.start()
        results += run_faults(suite, faults, tests)
    except (RunFailed, subprocess.TimeoutExpired) as error:
        results.append(("the run", str(error)))
    finally:
        signal.alarm(0)
        suite.stop()
        shutil.rmtree(folder)
    return results


def give_up(*_):
    """Ends the run, which then ends what it has started."""
    raise RunFailed("the run was ended, or took too long")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", help="keep the rule tests, with all recorded samples, there")
    keep = parser.parse_args().keep
    if missing := list(missing_needs()):
        print(f"left out: the recorded runs ({', '.join(missing)} not found)\n0 passed, 0 failed")
        return 0
    faults = [ended_certificate, full_redis, killed_supervisor]
    if not find_clock():
        faults.remove(ended_certificate)
        print("left out: the recorded run of a certificate that has ended (faketime is not installed)")
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, give_up)
    signal.alarm(RUN_SECS_MAX)
    results = run_suite(faults, keep)
    for name, wrong in results:
        if wrong:
            print(f"FAIL recorded: {name}: {wrong}")
    failed = sum(bool(wrong) for _, wrong in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
