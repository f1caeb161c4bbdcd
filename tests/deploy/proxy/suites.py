"""Suites of Mycora behind a proxy: `mycora up`, and services as processes of their own with replicas."""

import contextlib
import pathlib
import secrets
import subprocess

from processes import PATIENCE_SECS, Process, free_ports, is_ready

NAMESPACE = "mycora"
CONTEXT = ACTOR = 1
# Ports in the files of deploy/haproxy: those of the proxy, and those of the services by replica.
PROXY_PORTS = {7700: "public", 7710: "services", 8405: "metrics"}
PASSTHROUGH_PORTS = {
    7721: "storage", 7722: "scheduler", 7723: "router", 7724: "runner-registry", 7725: "mycelium-gateway", 7728: "saga",
}
# Number of each replica: it listens on 7700 and this for TLS, on 7900 and this for the mesh.
REPLICAS = {
    "storage-1": 1, "storage-2": 11, "scheduler-1": 2, "scheduler-2": 12, "router-1": 3, "runner-registry": 4,
    "mycelium-gateway": 5, "saga-1": 8,
}
# Services that nobody balances.
MACHINES = {"supervisor": 6, "runner": 7}
PROGRAMS = ("storage", "scheduler", "router", "runner-registry", "mycelium-gateway", "supervisor", "runner")


def service_of(replica):
    """The service of which this is a replica."""
    return replica.rstrip("0123456789").rstrip("-")


class CommandFailed(Exception):
    """A command that a test needs and that failed."""


class CommandLine:
    """`mycora` with a profile."""

    def __init__(self, program, profile):
        self.program, self.profile = program, pathlib.Path(profile)

    def arguments(self, *args):
        return [str(self.program), "--config", str(self.profile), *map(str, args)]

    def call(self, *args):
        """Runs a command; returns its exit code and both outputs in one."""
        return subprocess.run(
            self.arguments(*args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=2 * PATIENCE_SECS,
        )

    def need(self, *args):
        """Runs a command that has to succeed; returns its output."""
        ended = self.call(*args)
        if ended.returncode:
            raise CommandFailed(f"mycora {' '.join(map(str, args))} ended with {ended.returncode}: {ended.stdout.strip()}")
        return ended.stdout


class Profiles:
    """Client profiles in a folder."""

    def __init__(self, program, folder):
        self.program, self.folder = program, pathlib.Path(folder)

    def write(self, name, lines):
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o600)
        return CommandLine(self.program, path)

    def by_token(self, name, address, ca, key):
        """Actor 1 with a token in each call."""
        return self.write(name, [
            f'address = "{address}"', f'ca = "{ca}"', f'signing_key = "{key}"', 'trust_domain = "mycora"',
            f"context = {CONTEXT}", f"actor = {ACTOR}",
        ])

    def by_certificate(self, name, addresses, pki):
        """Actor 1 with its certificate, and the administrator as `admin`."""
        return self.write(name, [
            f'ca = "{pki}/ca.pem"', f'cert = "{pki}/actor-1.pem"', f'key = "{pki}/actor-1.key"',
            f"context = {CONTEXT}", f"actor = {ACTOR}",
            "[addresses]", *(f'{service} = "{address}"' for service, address in addresses.items()),
            "[profiles.admin]", f'cert = "{pki}/admin.pem"', f'key = "{pki}/admin.key"',
        ])

    def by_nothing(self, name, address, ca):
        """A caller that shows neither."""
        return self.write(name, [f'address = "{address}"', f'ca = "{ca}"', f"context = {CONTEXT}"])


def issue(program, identity, folder, *names):
    """Makes a certificate; returns its file and that of its key."""
    words = [word for name in names for word in ("--name", name)]
    made = subprocess.run(
        [program, "pki", "issue", identity, "--dir", folder, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if made.returncode:
        raise CommandFailed(f"pki issue {identity}: {made.stdout.strip()}")
    file = identity.removeprefix("service/").replace("/", "-")
    return pathlib.Path(folder) / f"{file}.pem", pathlib.Path(folder) / f"{file}.key"


def authority(program, folder):
    """Makes an authority in a folder."""
    made = subprocess.run([program, "pki", "init", "--dir", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode:
        raise CommandFailed(f"pki init: {made.stdout.strip()}")
    return pathlib.Path(folder)


def certificates_of_proxy(program, work, pki):
    """Fills the folder that haproxy.cfg names; returns it, and the authority by which clients know the proxy."""
    other, folder = authority(program, work / "other"), work / "certificates"
    folder.mkdir(mode=0o700)
    # Of an authority that no service trusts: its identity is nobody's.
    public = issue(program, f"actor/{ACTOR}", other, "localhost", "storage.localhost")
    storage = pki / "storage.pem", pki / "storage.key"
    if not storage[0].exists():
        storage = issue(program, "service/storage", pki)
    for name, files in (("public", public), ("storage", storage)):
        bundle = folder / f"{name}.pem"
        bundle.touch(mode=0o600)
        bundle.write_text("".join(file.read_text() for file in files))
    (folder / "ca.pem").write_text((pki / "ca.pem").read_text())
    return folder, other / "ca.pem"


def mesh_flags(kind, port):
    return {"MYCORA_MESH": kind, "MYCORA_MESH_NAMESPACE": NAMESPACE, "MYCORA_MESH_LISTEN": f"127.0.0.1:{port}"}


class AllInOne:
    """`mycora up`: one process that serves everything at one port, and another one for a mesh."""

    def __init__(self, program, work):
        self.program, self.work, self.data = program, work, work / "data"
        self.tls_port, self.mesh_port = free_ports(2)
        self.pki = self.data / "pki"
        self.key = self.data / "actor-1.ed25519"
        self.process = None

    def start(self, mesh="istio"):
        command = [self.program, "up", "--data", self.data, "--port", self.tls_port]
        self.process = Process("up", command, self.work, mesh_flags(mesh, self.mesh_port)).start()
        self.process.wait_for("is ready", lambda: is_ready(self.tls_port + 100))
        return self

    def stop(self):
        if self.process:
            self.process.stop()

    def ports(self, proxy, mesh=True):
        """The port for each one in the shipped files."""
        to = self.mesh_port if mesh else self.tls_port
        return proxy | {7900 + number: to for number in REPLICAS.values()} | {
            7700 + number: self.tls_port for number in REPLICAS.values()
        }


class Separate:
    """Every service as a process of its own: two storages and two schedulers, and one of each other."""

    def __init__(self, programs, work):
        self.programs, self.work = programs, work
        self.mycora = programs / "mycora"
        names = [*REPLICAS, *MACHINES]
        tls = free_ports(len(names))
        self.tls_ports = dict(zip(names, tls))
        self.mesh_ports = dict(zip(names, free_ports(len(names))))
        # Storage answers who calls.
        self.mesh_port = self.mesh_ports["storage-1"]
        self.socket, self.token = work / "redis.sock", work / "ops.token"
        self.processes = {}
        self.pki = self.key = None

    def prepare(self):
        """Certificates and the token of the ops ports."""
        self.pki = authority(self.mycora, self.work / "pki")
        self.key = self.pki / "actor-1.ed25519"
        for service in PROGRAMS:
            issue(self.mycora, f"service/{service}", self.pki)
        issue(self.mycora, f"actor/{ACTOR}", self.pki)
        (self.work / "scripts").mkdir(mode=0o700)
        self.token.touch(mode=0o600)
        self.token.write_text(secrets.token_hex(32))

    def start_redis(self):
        folder = self.work / "redis"
        folder.mkdir()
        settings = {
            "--port": 0, "--unixsocket": self.socket, "--unixsocketperm": 700, "--dir": folder, "--databases": 64,
            "--appendonly": "yes", "--save": "", "--notify-keyspace-events": "Kl",
        }
        command = ["redis-server", *(word for setting in settings.items() for word in setting)]
        self.processes["redis"] = Process("redis", command, self.work).start()
        self.processes["redis"].wait_for("answers", self.socket.exists)

    def start(self, name, storage):
        """Starts a service that reaches storage at this address."""
        command = [self.programs / f"mycora-{service_of(name)}"]
        self.processes[name] = Process(name, command, self.work, self.settings(name, storage)).start()

    def settings(self, name, storage):
        service, port = service_of(name), self.tls_ports[name]
        database = 63 if name in MACHINES else 0
        url = lambda to: f"https://127.0.0.1:{self.tls_ports[to]}"
        settings = {
            "MYCORA_LISTEN": f"127.0.0.1:{port}", "MYCORA_OPS_LISTEN": f"127.0.0.1:{port + 100}",
            "MYCORA_OPS_TOKEN_FILE": self.token, "MYCORA_TLS_CA": self.pki / "ca.pem",
            "MYCORA_TLS_CERT": self.pki / f"{service}.pem", "MYCORA_TLS_KEY": self.pki / f"{service}.key",
            "MYCORA_REDIS_URL": f"unix://{self.socket}?db={database}", "MYCORA_WORK_DIR": self.work / "scripts",
            "MYCORA_STORAGE": storage, "MYCORA_RUNNER_REGISTRY": url("runner-registry"),
            "MYCORA_MYCELIUM_GATEWAY": url("mycelium-gateway"), "MYCORA_RUNNER_ADDRESSES": "127.0.0.1",
            "MYCORA_ROUTER_NAME": name,
        }
        if name not in MACHINES:
            settings |= mesh_flags("istio", self.mesh_ports[name])
        if service == "mycelium-gateway":
            settings["MYCORA_SIGNING_KEY"] = self.pki / f"{service}.signing.key"
            settings["MYCORA_SIGNING_CERTIFICATE"] = self.pki / f"{service}.signing.json"
        if service == "supervisor":
            root = subprocess.run([self.mycora, "pki", "root", "--dir", self.pki], stdout=subprocess.PIPE, text=True, check=True)
            settings["MYCORA_COORDINATOR"] = root.stdout.strip()
        if service == "runner":
            settings |= {"MYCORA_GROUP": "default", "MYCORA_INSTANCE": "1"}
        return {name: str(value) for name, value in settings.items()}

    def wait_until_ready(self, *names):
        for name in names:
            ops = self.tls_ports[name] + 100
            self.processes[name].wait_for("is ready", lambda at=ops: is_ready(at))

    def stop(self):
        """Ends what runs, the services in the order of their calls and Redis last."""
        with contextlib.ExitStack() as ending:
            # The last callback comes first.
            for name in sorted(self.processes, key=lambda name: (name != "redis", not name.startswith("storage"))):
                ending.callback(self.processes[name].stop)

    def ports(self, proxy):
        return proxy | {7900 + number: self.mesh_ports[name] for name, number in REPLICAS.items()} | {
            7700 + number: self.tls_ports[name] for name, number in REPLICAS.items()
        }
