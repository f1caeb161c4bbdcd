"""HAProxy, with the files of deploy/haproxy at other ports and paths."""

import csv
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess

from processes import Process, children_of, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHIPPED = ROOT / "deploy/haproxy"
CERTIFICATES = "/etc/haproxy/mycora/"
ADMIN_SOCKET = "/run/haproxy/mycora.sock"
HTTP2 = "proto h2"


def program():
    """Returns the path of HAProxy; None where it is not installed."""
    # Debian has it outside of the usual PATH.
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")


def has_account(name):
    try:
        return bool(pwd.getpwnam(name))
    except KeyError:
        return False


def adapted(file, ports, certificates, admin):
    """The text of a shipped file with every port replaced as `ports` says, its folder of certificates and its admin socket."""
    text = (SHIPPED / file).read_text()
    text = re.sub(r"\bbind :(\d+)", r"bind 127.0.0.1:\1", text)
    text = re.sub(r"\b127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{ports[int(found[1])]}", text)
    text = text.replace(CERTIFICATES, f"{certificates}/").replace(ADMIN_SOCKET, str(admin))
    if os.getuid() != 0 or not has_account("haproxy"):
        text = re.sub(r"^ +(user|group) .*\n", "", text, flags=re.MULTILINE)
    return text


def over_tls(text, name):
    """The text with its commented line for TLS towards the services in the place of the one for HTTP/2 without TLS."""
    lines = text.splitlines(keepends=True)
    plain = [at for at, line in enumerate(lines) if line.startswith("    default-server ") and HTTP2 in line]
    tls = [at for at, line in enumerate(lines) if line.startswith("    # default-server ") and " ssl " in line]
    if len(plain) != 1 or len(tls) != 1:
        raise ValueError("haproxy.cfg has no two lines default-server, one of them in a comment")
    lines[tls[0]] = lines[tls[0]].replace("# ", "", 1)
    del lines[plain[0]]
    return re.sub(r"verifyhost \S+", f"verifyhost {name}", "".join(lines))


def both(first, second):
    """The sections of two files in one, with the section `global` of the first."""
    return first + second[second.index("\ndefaults\n"):]


class HAProxy:
    """A master with its workers."""

    def __init__(self, name, text, work):
        # Of its sections; those of haproxy.cfg have none.
        self.suffix = "-passthrough" if name == "passthrough" else ""
        self.file, self.admin_socket = pathlib.Path(work) / f"{name}.cfg", admin_socket(work, name)
        self.file.write_text(text)
        self.master_socket = pathlib.Path(work) / f"{name}-master.sock"
        self.process = Process(name, [program(), "-W", "-S", self.master_socket, "-f", self.file], work)

    def complaints(self):
        """Returns the complaints of `haproxy -c` about the file, warnings included."""
        checked = subprocess.run(
            [program(), "-c", "-f", str(self.file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        lines = [line for line in checked.stdout.splitlines() if "[WARNING]" in line or "[ALERT]" in line]
        return "\n".join(lines) or (f"it ended with {checked.returncode}" if checked.returncode else "")

    def start(self):
        self.process.start()
        self.process.wait_for("has a worker", self.worker)
        return self

    def stop(self):
        self.process.stop()

    def log(self):
        return self.process.log.read_text(errors="replace")

    def worker(self):
        """The process that serves new connections; 0 while there is none."""
        # The master answers when it is ready for the next signal: one that comes earlier is lost.
        found = re.search(r"^# workers\n(\d+) ", answer(self.master_socket, "show proc"), re.MULTILINE)
        return int(found[1]) if found else 0

    def workers(self):
        return children_of(self.process.pid)

    def reload(self):
        """Starts a new worker; returns the former one, which goes on with what it has."""
        former = self.worker()
        self.process.running.send_signal(signal.SIGUSR2)
        self.process.wait_for("has a new worker", lambda: self.worker() not in (0, former))
        return former

    def statistics(self):
        rows = answer(self.admin_socket, "show stat").lstrip("# ").splitlines()
        return {(row["pxname"], row["svname"]): row for row in csv.DictReader(rows)}

    def row(self, service, server):
        """The statistics of a server."""
        return self.statistics().get((f"{service}{self.suffix}", server), {})

    def is_up(self, service, server):
        """Returns whether a check found it up: every server counts as up at the start."""
        row = self.row(service, server)
        return row.get("status") == "UP" and row.get("check_status") == "L7OK"

    def wait_until_down(self, service, server):
        wait_until(f"{server} is down for the proxy", lambda: self.row(service, server).get("status", "").startswith("DOWN"))

    def wait_until_up(self, *servers):
        for at in servers:
            wait_until(f"{at[1]} is up for the proxy", lambda at=at: self.is_up(*at))


def answer(path, command):
    """The answer to a command at a socket of HAProxy; empty while nobody answers."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(path))
            connection.sendall(command.encode() + b"\n")
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except OSError:
        return ""


def admin_socket(work, name):
    return pathlib.Path(work) / f"{name}.sock"
