"""Talks to Mycora as a program in another language does: stubs made from proto/, grpcio, mutual TLS.

Submits a flow, watches it to its end, reads results and logs; then makes sure that errors are what a
client can act on: violations all at once, nothing without a certificate. Prints one line for each check
and closes with the counts.
"""

import pathlib
import sys
import tomllib
import uuid

import grpc
from mycora.v1 import flow_service_pb2 as flows
from mycora.v1 import flow_service_pb2_grpc as flows_grpc
from mycora.v1 import types_pb2 as types

DEADLINE_SECS = 60


class Profile:
    """What a client.toml says; its paths are relative to the file."""

    def __init__(self, path):
        path = pathlib.Path(path)
        content = tomllib.loads(path.read_text())
        read = lambda name: (path.parent / content[name]).read_bytes()
        self.ca, self.cert, self.key = read("ca"), read("cert"), read("key")
        self.target = content.get("addresses", {}).get("scheduler") or content["address"]
        self.target = self.target.removeprefix("https://")
        self.server_name = content.get("server_name")
        self.context = content["context"]

    def channel(self, with_certificate=True):
        mine = {"private_key": self.key, "certificate_chain": self.cert} if with_certificate else {}
        credentials = grpc.ssl_channel_credentials(root_certificates=self.ca, **mine)
        options = [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []
        return grpc.secure_channel(self.target, credentials, options)


def shell(name, script, depends=(), **env):
    """A node that runs a shell script."""
    job = flows.JobSpec(
        script_type=types.SCRIPT_TYPE_SHELL, script=flows.Script(text=script), env_vars=env
    )
    return flows.NodeSpec(name=name, depends=depends, job=job)


def fan_out():
    """Three numbers, doubled side by side and added up."""
    numbers = (1, 2, 3)
    nodes = [
        shell(f"double-{n}", f'echo "twice=$((2 * {n}))" >> "$MYCORA_RESULT"; echo "doubled {n}"')
        for n in numbers
    ]
    terms = {f"N{n}": "${{ results.double-%d.twice }}" % n for n in numbers}
    add = 'echo "total=$((N1 + N2 + N3))" >> "$MYCORA_RESULT"'
    nodes.append(shell("add", add, [f"double-{n}" for n in numbers], **terms))
    return flows.FlowSpec(name="python-client", nodes=nodes)


def watch_to_end(stub, context, flow_id):
    """The flow as the stream last showed it, and how the stream began."""
    last, snapshot_ended = None, False
    request = flows.WatchFlowRequest(context_id=context, flow_id=flow_id)
    for answer in stub.WatchFlow(request, timeout=DEADLINE_SECS):
        kind = answer.WhichOneof("event")
        snapshot_ended |= kind == "snapshot_end"
        if kind == "flow":
            last = answer.flow
    return last, snapshot_ended


def details(error):
    """The `google.rpc` details of a failed call, read with nothing but what the wire says.

    grpcio gives the encoded Status; its details are `Any`s, whose type names are enough here.
    """
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            return value
    return b""


def refused(call):
    """The error of a call that must fail."""
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise AssertionError("the call was answered")


class Checks:
    """Counts what was checked."""

    def __init__(self):
        self.passed = self.failed = 0

    def that(self, what, holds, otherwise=""):
        print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else f': {otherwise}'}", flush=True)
        self.passed += bool(holds)
        self.failed += not holds


def check_flow(checks, stub, context):
    request_id = str(uuid.uuid4())
    request = flows.SubmitFlowRequest(request_id=request_id, context_id=context, flow=fan_out())
    flow = stub.SubmitFlow(request, timeout=DEADLINE_SECS).flow
    checks.that("a flow is submitted", flow.id > 0 and flow.node_count == 4, flow)
    again = stub.SubmitFlow(request, timeout=DEADLINE_SECS).flow
    checks.that("the same request id gives the same flow", again.uid == flow.uid, again)

    last, snapshot_ended = watch_to_end(stub, context, flow.id)
    checks.that("a watch begins with a snapshot", snapshot_ended)
    finished = last is not None and last.status == flows.FLOW_STATUS_FINISHED
    checks.that("and ends when the flow is FINISHED", finished, last)
    got = stub.GetFlow(flows.GetFlowRequest(context_id=context, flow_id=flow.id), timeout=DEADLINE_SECS).flow
    checks.that("the flow's result is what was computed", dict(got.result) == {"add.total": "12"}, got.result)

    nodes = stub.ListFlowNodes(
        flows.ListFlowNodesRequest(context_id=context, flow_id=flow.id), timeout=DEADLINE_SECS
    ).nodes
    by_name = {node.name: node for node in nodes}
    completed = all(node.state == flows.NODE_STATE_COMPLETED and node.exit_code == 0 for node in nodes)
    checks.that("all nodes are COMPLETED", len(nodes) == 4 and completed, nodes)
    twice = by_name["double-3"].result.get("twice")
    checks.that("a node's result can be read", twice == "6", twice)
    logs = stub.StreamFlowLogs(
        flows.StreamFlowLogsRequest(context_id=context, flow_id=flow.id, node="double-2", follow=True),
        timeout=DEADLINE_SECS,
    )
    text = b"".join(piece.data for piece in logs)
    checks.that("what a job printed can be read after its end", text == b"doubled 2\n", text)


def check_errors(checks, stub, context):
    cycle = flows.FlowSpec(name="cycle", nodes=[shell("a", "true", ["b"]), shell("b", "true", ["a"])])
    request = flows.SubmitFlowRequest(context_id=context, flow=cycle)
    error = refused(lambda: stub.SubmitFlow(request, timeout=DEADLINE_SECS))
    checks.that("a cycle is INVALID_ARGUMENT", error.code() == grpc.StatusCode.INVALID_ARGUMENT, error)
    named = b"google.rpc.ErrorInfo" in details(error) and b"google.rpc.BadRequest" in details(error)
    checks.that("with ErrorInfo and BadRequest", named, details(error))
    missing = flows.GetFlowRequest(context_id=context, flow_id=4_000_000_000)
    error = refused(lambda: stub.GetFlow(missing, timeout=DEADLINE_SECS))
    checks.that("an unknown flow is NOT_FOUND", error.code() == grpc.StatusCode.NOT_FOUND, error)


def main():
    profile, checks = Profile(sys.argv[1]), Checks()
    with profile.channel() as channel:
        stub = flows_grpc.FlowServiceStub(channel)
        for check in (check_flow, check_errors):
            try:
                check(checks, stub, profile.context)
            except grpc.RpcError as error:
                checks.that(f"{check.__name__} goes on to its end", False, error)
    with profile.channel(with_certificate=False) as channel:
        stub = flows_grpc.FlowServiceStub(channel)
        request = flows.ListFlowsRequest(context_id=profile.context)
        error = refused(lambda: stub.ListFlows(request, timeout=DEADLINE_SECS))
        unauthenticated = error.code() == grpc.StatusCode.UNAUTHENTICATED
        checks.that("without a certificate the call is UNAUTHENTICATED", unauthenticated, error)
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
