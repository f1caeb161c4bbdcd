"""A suite with both proxies in front."""

import contextlib

import haproxy
from haproxy import HAProxy
from processes import free_ports
from suites import PASSTHROUGH_PORTS, PROXY_PORTS, Profiles, certificates_of_proxy


class Stage:
    """A suite with both proxies in front, and clients that reach it through them."""

    def __init__(self, suite, program, work):
        self.suite, self.program, self.work = suite, program, work
        self.at = dict(zip([*PROXY_PORTS.values(), *(f"passed-{name}" for name in PASSTHROUGH_PORTS.values())],
                           free_ports(len(PROXY_PORTS) + len(PASSTHROUGH_PORTS))))
        self.proxy = self.passthrough = self.certificates = self.public_ca = None

    def proxy_ports(self):
        passed = {port: self.at[f"passed-{name}"] for port, name in PASSTHROUGH_PORTS.items()}
        return {port: self.at[name] for port, name in PROXY_PORTS.items()} | passed

    def prepare(self):
        """Makes certificates, configurations and profiles. The suite's authority has to be there."""
        self.certificates, self.public_ca = certificates_of_proxy(self.program, self.work, self.suite.pki)
        ports = self.suite.ports(self.proxy_ports())
        self.proxy, self.passthrough = self.configured("haproxy", ports), self.configured("passthrough", ports)
        profiles = Profiles(self.program, self.work)
        public = f"https://localhost:{self.at['public']}"
        self.by_token = profiles.by_token("token", public, self.public_ca, self.suite.key)
        self.by_nothing = profiles.by_nothing("nothing", public, self.public_ca)
        passed = {name: f"https://localhost:{self.at[f'passed-{name}']}" for name in PASSTHROUGH_PORTS.values() if name != "saga"}
        self.by_certificate = profiles.by_certificate("certificate", passed, self.suite.pki)

    def configured(self, name, ports, change=lambda text: text):
        text = haproxy.adapted(f"{name}.cfg", ports, self.certificates, haproxy.admin_socket(self.work, name))
        return HAProxy(name, change(text), self.work)

    def stop(self):
        """Ends the suite first, whose processes reach each other through the proxies."""
        with contextlib.ExitStack() as ending:
            for part in (self.passthrough, self.proxy, self.suite):
                if part:
                    ending.callback(part.stop)
