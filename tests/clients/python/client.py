"""Talks to Mycora as a program in Python does: grpcio, with stubs made from proto/.

Submits a flow, watches it, breaks the watch and resumes it, reads results and logs, and makes sure that
errors are what a program can act on: once with a client certificate and once with tokens. Prints a line
for each check and closes with the counts.
"""

import itertools
import sys
import uuid
from concurrent import futures

import grpc
from connection import Profile, nobody, thumbprint, with_certificate, with_tokens
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status
from mycora.v1 import actor_service_pb2 as actors
from mycora.v1 import actor_service_pb2_grpc as actors_grpc
from mycora.v1 import flow_service_pb2 as flows
from mycora.v1 import flow_service_pb2_grpc as flows_grpc
from mycora.v1 import types_pb2 as types
from refusal import Refusal, patiently

DEADLINE_SECS = 60
NUMBERS = (1, 2, 3)


class Checks:
    """Counts what was checked."""

    def __init__(self):
        self.passed = self.failed = 0
        self.part = ""

    def that(self, what, holds, otherwise=""):
        print(f"{'ok  ' if holds else 'FAIL'} {self.part}: {what}{'' if holds else f': {otherwise}'}", flush=True)
        self.passed += bool(holds)
        self.failed += not holds


def shell(name, script, env_vars=None, **more):
    """A node that runs a shell script."""
    job = flows.JobSpec(script_type=types.SCRIPT_TYPE_SHELL, script=flows.Script(text=script), env_vars=env_vars)
    return flows.NodeSpec(name=name, job=job, **more)


def sum_of_doubles(name):
    """Three numbers, doubled side by side, and added up when somebody gives the signal."""
    nodes = [
        shell(f"double-{n}", f'echo "twice=$((2 * {n}))" >> "$MYCORA_RESULT"; echo "doubled {n}"') for n in NUMBERS
    ]
    add = shell(
        "add",
        'echo "total=$((N1 + N2 + N3))" >> "$MYCORA_RESULT"',
        depends=[node.name for node in nodes],
        prerequisites=["signal:add-up"],
        env_vars={f"N{n}": "${{ results.double-%d.twice }}" % n for n in NUMBERS},
    )
    return flows.FlowSpec(name=name, nodes=[*nodes, add])


def refused(call):
    """The refusal of a call that must fail."""
    try:
        call()
    except grpc.RpcError as error:
        return Refusal(error)
    raise AssertionError("the call was answered")


def submit(stub, context, flow, request_id=None):
    """The flow that was started. The request id makes it safe to try again."""
    request = flows.SubmitFlowRequest(request_id=request_id or str(uuid.uuid4()), context_id=context, flow=flow)
    return patiently(lambda: stub.SubmitFlow(request, timeout=DEADLINE_SECS)).flow


def check_submission(checks, stub, context):
    """The flow that the other checks are about."""
    request_id, spec = str(uuid.uuid4()), sum_of_doubles("from-python")
    flow = submit(stub, context, spec, request_id)
    checks.that("a flow is submitted", flow.id > 0 and flow.node_count == 4, flow)
    again = submit(stub, context, spec, request_id)
    checks.that("the same request id gives the same flow", again.uid == flow.uid, again)
    refusal = refused(lambda: submit(stub, context, sum_of_doubles("another"), request_id))
    reused = refusal.code == grpc.StatusCode.ALREADY_EXISTS and refusal.reason == "REQUEST_ID_REUSED"
    checks.that("with another body it is refused", reused, refusal)
    return flow


def watch(stub, flow, position="", timeout=DEADLINE_SECS):
    """What happens to a flow: all of it, or what came after a position."""
    request = flows.WatchFlowRequest(context_id=flow.context_id, flow_id=flow.id, resume_position=position)
    return stub.WatchFlow(request, timeout=timeout)


def watch_until_doubled(stub, flow):
    """Breaks the watch when all doubles are there, and gives them, the changes that were told, and its position."""
    doubled, told, snapshot_ended, position = set(), set(), False, ""
    stream = watch(stub, flow)
    for answer in stream:
        position = answer.resume_position or position
        match answer.WhichOneof("event"):
            case "node" if answer.node.state == flows.NODE_STATE_COMPLETED:
                doubled.add(answer.node.job_id)
            case "node_change":
                told.add((answer.node_change.job_id, answer.node_change.state))
            case "snapshot_end":
                snapshot_ended = True
        doubled |= {job for job, state in told if state == flows.NODE_STATE_COMPLETED}
        if snapshot_ended and len(doubled) == len(NUMBERS):
            stream.cancel()
            break
    return doubled, told, position


def check_watching(checks, stub, flow):
    doubled, told, position = watch_until_doubled(stub, flow)
    checks.that("a watch begins with a snapshot, and says where it is", position != "", position)
    refusal = refused(lambda: list(watch(stub, flow, position, timeout=0.5)))
    checks.that("a deadline ends it", refusal.code == grpc.StatusCode.DEADLINE_EXCEEDED, refusal)

    signal = flows.SignalFlowRequest(context_id=flow.context_id, flow_id=flow.id, name="add-up")
    signal.request_id = str(uuid.uuid4())
    stub.SignalFlow(signal, timeout=DEADLINE_SECS)
    answers = list(watch(stub, flow, position))
    kinds = [answer.WhichOneof("event") for answer in answers]
    checks.that("a watch that is resumed has no snapshot", not {"node", "snapshot_end"} & set(kinds), kinds)
    changes = [answer.node_change for answer in answers if answer.WhichOneof("event") == "node_change"]
    again = told & {(change.job_id, change.state) for change in changes}
    checks.that("tells no change again", not again, again)
    added = {c.job_id for c in changes if c.state == flows.NODE_STATE_COMPLETED} - doubled
    checks.that("tells what came after", len(added) == 1, changes)
    ends = [answer.flow.status for answer in answers if answer.WhichOneof("event") == "flow"]
    checks.that("and ends when the flow is FINISHED", ends[-1:] == [flows.FLOW_STATUS_FINISHED], ends)


def nodes_of(stub, flow, page_size):
    """The flow's nodes, page by page."""
    request = flows.ListFlowNodesRequest(context_id=flow.context_id, flow_id=flow.id, page_size=page_size)
    while True:
        page = stub.ListFlowNodes(request, timeout=DEADLINE_SECS)
        yield page.nodes
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def check_results(checks, stub, flow):
    request = flows.GetFlowRequest(context_id=flow.context_id, flow_id=flow.id)
    result = dict(stub.GetFlow(request, timeout=DEADLINE_SECS).flow.result)
    checks.that("the flow's result is what was computed", result == {"add.total": "12"}, result)
    pages = list(nodes_of(stub, flow, page_size=3))
    checks.that("its nodes come in pages", [len(page) for page in pages] == [3, 1], pages)
    nodes = {node.name: node for node in itertools.chain(*pages)}
    completed = all(node.state == flows.NODE_STATE_COMPLETED and node.exit_code == 0 for node in nodes.values())
    checks.that("all are COMPLETED", len(nodes) == 4 and completed, nodes)
    twice = nodes["double-3"].result.get("twice")
    checks.that("a node's result can be read", twice == "6", twice)

    request = flows.StreamFlowLogsRequest(context_id=flow.context_id, flow_id=flow.id, node="double-2", follow=True)
    text = b"".join(piece.data for piece in stub.StreamFlowLogs(request, timeout=DEADLINE_SECS))
    checks.that("what a job printed can be read after its end", text == b"doubled 2\n", text)
    request.attempt, request.offset = 1, len(b"doubled ")
    text = b"".join(piece.data for piece in stub.StreamFlowLogs(request, timeout=DEADLINE_SECS))
    checks.that("also from a byte on", text == b"2\n", text)


def check_refusals(checks, stub, context):
    nodes = [shell("c d", "true"), shell("eager", "true", policy=flows.NodePolicy(retries=101))]
    refusal = refused(lambda: submit(stub, context, flows.FlowSpec(name="", nodes=nodes)))
    invalid = refusal.code == grpc.StatusCode.INVALID_ARGUMENT and refusal.reason == "INVALID_REQUEST"
    checks.that("a flow that cannot be is INVALID_ARGUMENT", invalid, refusal)
    every = {"flow.name", "flow.nodes[0].name", "flow.nodes[1].policy.retries"}
    checks.that("with all violations at once", refusal.violations.keys() == every, refusal)
    request = flows.GetFlowRequest(context_id=context, flow_id=4_000_000_000)
    refusal = refused(lambda: stub.GetFlow(request, timeout=DEADLINE_SECS))
    not_found = refusal.code == grpc.StatusCode.NOT_FOUND and refusal.reason == "NOT_FOUND"
    checks.that("an unknown flow is NOT_FOUND", not_found, refusal)


def check_identity(checks, profile, credentials):
    with profile.channel("storage", credentials) as channel:
        stub = actors_grpc.ActorServiceStub(channel)
        me = stub.WhoAmI(actors.WhoAmIRequest(), timeout=DEADLINE_SECS)
    checks.that("the server knows who calls", me.actor.id == profile.actor, me)
    audience = f"spiffe://{profile.trust_domain}"
    checks.that("and says for whom tokens are", me.token_audience == audience, me)


def check_all(checks, profile, credentials):
    """The same with each way to say who one is."""
    check_identity(checks, profile, credentials)
    with profile.channel("scheduler", credentials) as channel:
        stub = flows_grpc.FlowServiceStub(channel)
        flow = check_submission(checks, stub, profile.context)
        check_refusals(checks, stub, profile.context)
        check_watching(checks, stub, flow)
        check_results(checks, stub, flow)


def check_stranger(checks, profile, who, credentials, reason):
    request = flows.ListFlowsRequest(context_id=profile.context)
    with profile.channel("scheduler", credentials) as channel:
        stub = flows_grpc.FlowServiceStub(channel)
        refusal = refused(lambda: stub.ListFlows(request, timeout=DEADLINE_SECS))
    unauthenticated = refusal.code == grpc.StatusCode.UNAUTHENTICATED and refusal.reason == reason
    checks.that(f"{who} is UNAUTHENTICATED", unauthenticated, refusal)


def check_certificate(checks, profile):
    check_all(checks, profile, with_certificate(profile))
    check_stranger(checks, profile, "who has none", nobody(profile), "IDENTITY_REQUIRED")


def check_token(checks, profile):
    checks.that("the profile names a signing_key", profile.signing_key)
    if not profile.signing_key:
        return
    check_all(checks, profile, with_tokens(profile))
    elsewhere = with_tokens(profile, "elsewhere")
    check_stranger(checks, profile, "who has one for another place", elsewhere, "IDENTITY_UNUSABLE")
    misnamed = with_tokens(profile, key_id=thumbprint(Ed25519PrivateKey.generate().public_key()))
    check_stranger(checks, profile, "who has one that names another key", misnamed, "IDENTITY_UNUSABLE")


class Busy(flows_grpc.FlowServiceServicer):
    """A server that has no time at first, as an overloaded scheduler."""

    def __init__(self):
        self.asked = 0

    def GetFlow(self, request, context):
        self.asked += 1
        if self.asked == 1:
            retry = any_pb2.Any()
            retry.Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=10_000_000)))
            status = status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, message="later", details=[retry])
            context.abort_with_status(rpc_status.to_status(status))
        return flows.GetFlowResponse(flow=flows.Flow(id=request.flow_id))


def check_patience(checks):
    server, busy = grpc.server(futures.ThreadPoolExecutor(max_workers=1)), Busy()
    flows_grpc.add_FlowServiceServicer_to_server(busy, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = flows_grpc.FlowServiceStub(channel)
        answer = patiently(lambda: stub.GetFlow(flows.GetFlowRequest(flow_id=7), timeout=DEADLINE_SECS))
    server.stop(None).wait()
    checks.that("who is told when to try again does so", answer.flow.id == 7 and busy.asked == 2, busy.asked)


def main():
    profile, checks = Profile(sys.argv[1]), Checks()
    parts = {
        "certificate": lambda: check_certificate(checks, profile),
        "token": lambda: check_token(checks, profile),
        "patience": lambda: check_patience(checks),
    }
    for checks.part, check in parts.items():
        try:
            check()
        except grpc.RpcError as error:
            checks.that("goes on to its end", False, Refusal(error))
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
