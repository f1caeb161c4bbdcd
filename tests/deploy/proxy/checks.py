"""Checks of a suite behind a proxy."""

import pathlib
import re
import urllib.request

import haproxy
from callers import Load, SingleCalls, Watch, flow_file, run_flow
from counts import expect
from processes import parent_of, wait_until
from suites import NAMESPACE

ROOT = pathlib.Path(__file__).resolve().parents[3]
ISTIO, LINKERD = "x-forwarded-client-cert", "l5d-client-id"
REQUIRED = "needs a client certificate"


def check_identity(counts, caller, stage):
    """Callers are known by a certificate or a token, and never by a header that they send."""
    public, services = f"localhost:{stage.at['public']}", f"localhost:{stage.at['services']}"
    anonymous = stage.by_nothing.call("flow", "list")
    counts.check(
        "a caller without certificate and token is refused",
        "" if anonymous.returncode == 3 and REQUIRED in anonymous.stdout else f"{anonymous.returncode}: {anonymous.stdout}",
    )
    if not caller:
        return
    name = f"{ISTIO}: URI=spiffe://cluster.local/ns/{NAMESPACE}/sa/"
    forged, router = f"{name}storage", "spiffe://mycora/service/router"
    pki, by_public = stage.suite.pki, ("-cacert", stage.public_ca)
    certificate = lambda file: ("-cacert", pki / "ca.pem", "-cert", pki / f"{file}.pem", "-key", pki / f"{file}.key")
    direct = caller.who_am_i(f"127.0.0.1:{stage.suite.mesh_port}", "-plaintext", headers=[forged])
    counts.check("the mesh port believes the header, so that its removal shows", expect(direct, "service/storage"))
    for headers in ([forged], [forged, forged]):
        found = caller.who_am_i(public, *by_public, headers=headers)
        counts.check(f"the proxy removes {ISTIO}, given {len(headers)} times", expect(found, REQUIRED))
    token = stage.by_token.need("token", "--header").strip()
    found = caller.who_am_i(public, *by_public, headers=[forged, token])
    counts.check("an actor with a token stays that actor", expect(found, "spiffe://mycora/actor/1"))
    found = caller.internal(public, *by_public, headers=[forged])
    counts.check("the proxy lets nobody call methods between services", expect(found, "404"))
    counts.check("a service is known by its certificate", expect(caller.who_am_i(services, *certificate("router")), router))
    found = caller.who_am_i(services, *certificate("router"), headers=[forged])
    counts.check("a service that forges another name stays itself", expect(found, router))
    found = caller.who_am_i(services, *certificate("actor-1"), headers=[forged])
    counts.check("an actor's certificate is no service's", expect(found, REQUIRED))
    found = caller.who_am_i(services, "-cacert", pki / "ca.pem", headers=[forged])
    counts.check("without a certificate there is no handshake", expect(found, "certificate required"))
    listed = caller.lists(public, *by_public)
    counts.check("reflection answers through the proxy", expect(listed, "mycora.v1.FlowService"))
    storage = caller.lists(public, *by_public, "-authority", "storage.localhost")
    counts.check("reflection of a service by its host", expect(storage, "mycora.v1.ContextService"))


def check_reload(counts, proxy, command_line, port, work):
    """An open watch goes on in the former process, and new calls come to the new one."""
    name = proxy.process.name
    watch = Watch(command_line, port, work, f"watch-{name}")
    try:
        with Load(command_line, ("flow", "list"), ("context", "list")) as load:
            load.wait_for_more()
            former = [proxy.reload(), proxy.reload()]
            run_flow(command_line, work, f"after-reload-{name}")
            load.wait_for_more()
        watch.wait_for_end_of(f"after-reload-{name}")
        counts.check(f"{name}: a watch has the flow that ended after two reloads", "")
        counts.check(f"{name}: it is the same connection", "" if watch.keeps_its_connection() else "the watch had to connect again")
        held = parent_of(former[0]) == proxy.process.pid
        counts.check(f"{name}: its process goes on for it", "" if held else "the former process has ended")
        load.check(counts, f"{name}: over two reloads")
    finally:
        watch.stop()
    # Sooner than a heartbeat, at which the proxy would notice in any case.
    wait_until(f"the former processes of {name} end", lambda: not proxy.workers() & set(former), secs=10)
    counts.check(f"{name}: without streams the former processes end", "")


def check_flows(counts, stage):
    """The command line works through both proxies, whose log and metrics show it."""
    for name, command_line in (("tokens", stage.by_token), ("certificates", stage.by_certificate)):
        said = run_flow(command_line, stage.work, f"by-{name}")
        counts.check(f"a flow with {name}", "" if re.search(r"who +world", said) else said)
        for command in (("context", "list"), ("runner", "list"), ("message", "list"), ("actor", "list")):
            ended = command_line.call(*command)
            counts.check(f"{' '.join(command)} with {name}", ended.stdout if ended.returncode else "")
    ended = stage.by_certificate.call("--as", "admin", "gateway", "show")
    counts.check("the administrator's certificate comes through", ended.stdout if ended.returncode else "")
    logged = re.search(r'\{[0-9a-f]{32}\} "POST \S+/mycora\.v1\.FlowService/SubmitFlow ', stage.proxy.log())
    counts.check("the proxy logs the id of a call", "" if logged else "no line has one")
    with urllib.request.urlopen(f"http://127.0.0.1:{stage.at['metrics']}/metrics", timeout=10) as answer:
        seen = answer.read().decode()
    counts.check("the proxy has metrics of each server", expect(seen, 'haproxy_server_status{proxy="storage",server="storage-2"'))


def check_configurations(counts, stage):
    for proxy in (stage.proxy, stage.passthrough):
        counts.check(f"HAProxy accepts {proxy.process.name}.cfg without a warning", proxy.complaints())
    text = haproxy.both(stage.proxy.file.read_text(), stage.passthrough.file.read_text())
    counts.check("HAProxy accepts both in one file without a warning", haproxy.HAProxy("both", text, stage.work).complaints())


def check_tls_towards_services(counts, stage):
    """With the other line default-server calls go to `--listen`, over TLS."""
    stage.proxy.stop()
    ports = stage.suite.ports(stage.proxy_ports(), mesh=False)
    proxy = stage.configured("haproxy", ports, lambda text: haproxy.over_tls(text, "mycora"))
    counts.check("HAProxy accepts TLS towards the services without a warning", proxy.complaints())
    stage.proxy = proxy.start()
    proxy.wait_until_up(("scheduler", "scheduler-1"), ("storage", "storage-1"))
    said = run_flow(stage.by_token, stage.work, "over-tls")
    counts.check("a flow with TLS towards the services", "" if re.search(r"who +world", said) else said)


def check_restart(counts, caller, stage):
    """The health check notices the end of a process, and a watch waits for the next one."""
    watch = Watch(stage.by_token, stage.at["public"], stage.work, "watch-restart")
    try:
        stage.suite.stop()
        stage.proxy.wait_until_down("scheduler", "scheduler-1")
        stage.passthrough.wait_until_down("scheduler", "scheduler-1")
        ended = stage.by_token.call("flow", "list")
        counts.check("without a server the proxy answers 503", expect(ended.stdout, "HTTP 503") or expect(str(ended.returncode), "3"))
        # In another mesh: the header of each has to be removed.
        stage.suite.start(mesh="linkerd")
        stage.proxy.wait_until_up(("scheduler", "scheduler-1"), ("storage", "storage-1"))
        run_flow(stage.by_token, stage.work, "after-restart")
        watch.wait_for_end_of("after-restart")
        counts.check("a watch has the flow that ended after a restart", "")
    finally:
        watch.stop()
    if caller:
        forged = f"{LINKERD}: storage.{NAMESPACE}.serviceaccount.identity.linkerd.cluster.local"
        direct = caller.who_am_i(f"127.0.0.1:{stage.suite.mesh_port}", "-plaintext", headers=[forged])
        counts.check(f"the mesh port believes {LINKERD}, so that its removal shows", expect(direct, "service/storage"))
        found = caller.who_am_i(f"localhost:{stage.at['public']}", "-cacert", stage.public_ca, headers=[forged])
        counts.check(f"the proxy removes {LINKERD}", expect(found, REQUIRED))


def check_drain(counts, stage, load, backend, replica):
    """Ends one replica and starts it again, while others call: the proxy sees both, and no command fails."""
    before = len(load.failures)
    load.wait_for_more()
    stage.suite.processes[replica].stop()
    for proxy in (stage.proxy, stage.passthrough):
        proxy.wait_until_down(backend, replica)
    load.wait_for_more()
    stage.suite.processes[replica].start()
    for proxy in (stage.proxy, stage.passthrough):
        proxy.wait_until_up((backend, replica))
    load.wait_for_more()
    failed = load.failures[before:]
    counts.check(f"no command failed while {replica} ended and came back", f"{len(failed)}, such as {failed[0]}" if failed else "")


def check_drains(counts, caller, stage):
    """Each replica ends in turn, while commands read, change and watch."""
    again = ("flow", "submit", flow_file(stage.work, "again"), "--watch")
    watch = Watch(stage.by_token, stage.at["public"], stage.work, "watch-drains")
    single = SingleCalls(caller, f"localhost:{stage.at['public']}", stage.public_ca, stage.by_token)
    try:
        with Load(stage.by_token, ("flow", "list"), ("context", "list"), again) as load, single:
            for backend, replica in (
                ("storage", "storage-1"), ("storage", "storage-2"), ("scheduler", "scheduler-1"), ("scheduler", "scheduler-2"),
            ):
                with counts.part(f"the end of {replica}"):
                    check_drain(counts, stage, load, backend, replica)
        load.check(counts, "while each replica ended in turn")
        if caller:
            print(f"     calls without a retry meanwhile: {single.calls}, {len(single.failures)} failed {single.reasons()}")
        run_flow(stage.by_token, stage.work, "after-drains")
        watch.wait_for_end_of("after-drains")
        counts.check("a watch has the flow that ended after all drains", "")
    finally:
        watch.stop()
    seen = stage.proxy.statistics()
    for backend, replica in (
        ("scheduler", "scheduler-1"), ("scheduler", "scheduler-2"), ("storage-for-services", "storage-1"),
        ("storage-for-services", "storage-2"),
    ):
        served = int(seen[backend, replica]["stot"] or 0)
        counts.check(f"{replica} of {backend} had calls", "" if served else "it had none")


def ended_streams(stage):
    """Streams between services that have ended at the proxy, which logs each at its end."""
    protos = "".join(file.read_text() for file in sorted((ROOT / "proto/mycora/internal/v1").glob("*.proto")))
    methods = "|".join(re.findall(r"rpc (\w+)\([^)]*\) returns \(stream ", protos))
    return re.findall(rf" storage-for-services/storage-.*/(?:{methods}) HTTP.*", stage.proxy.log())


def check_streams_between_services(counts, stage):
    """A reload cuts no stream between services."""
    connected = int(stage.proxy.statistics()["storage-for-services", "BACKEND"]["scur"])
    counts.check(f"services have {connected} streams through the proxy", "" if connected else "there is none")
    before = len(ended_streams(stage))
    former = stage.proxy.reload()
    said = run_flow(stage.by_token, stage.work, "after-reload-between-services")
    counts.check("a flow after a reload below the services", "" if re.search(r"who +world", said) else said)
    held = parent_of(former) == stage.proxy.process.pid
    counts.check("the former process goes on with streams between services", "" if held else "it has ended")
    cut = ended_streams(stage)[before:]
    counts.check("no stream between services was cut", cut[-1] if cut else "")
