"""What a call that failed says to programs, and how to go on."""

import time

import grpc
from google.rpc import error_details_pb2, status_pb2

TRIES_MAX = 5
DETAILS = "grpc-status-details-bin"


class Refusal:
    """The `google.rpc` details of a failed call."""

    def __init__(self, error):
        status = status_of(error)
        info = unpack(status.details, error_details_pb2.ErrorInfo)
        self.code, self.message = error.code(), status.message or error.details()
        # One of specs/errors.md, and what else there is for programs, such as the name of a limit.
        self.reason, self.metadata = (info.reason, dict(info.metadata)) if info else ("", {})
        bad_request = unpack(status.details, error_details_pb2.BadRequest)
        # Everything that is wrong with the request, at once: field and description.
        self.violations = {v.field: v.description for v in bad_request.field_violations} if bad_request else {}
        retry = unpack(status.details, error_details_pb2.RetryInfo)
        # Seconds; None: trying again as it is will not help.
        self.retry_secs = retry.retry_delay.ToTimedelta().total_seconds() if retry else None

    def __str__(self):
        return f"{self.code} {self.reason} {self.message} {self.metadata} {self.violations} {self.retry_secs}"


def status_of(error):
    """The `google.rpc.Status` of a failed call, empty when the client itself gave the call up.

    `grpc_status.rpc_status.from_call` raises ValueError when the server's answer meets the client's deadline:
    grpcio then hands the message over as it was on the wire, with `%20` for a space, and that is another than
    the status has.
    """
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS:
            return status_pb2.Status.FromString(value)
    return status_pb2.Status()


def unpack(details, kind):
    """The detail of that kind, or nothing."""
    for detail in details:
        found = kind()
        if detail.Unpack(found):
            return found
    return None


def patiently(call):
    """The answer to a call, which is made again when the server says that it has no time now, and until when.

    What changes something needs a `request_id` for that: a call that was answered, and whose answer was
    lost, changes nothing the second time.
    """
    for _ in range(TRIES_MAX - 1):
        try:
            return call()
        except grpc.RpcError as error:
            retry_secs = Refusal(error).retry_secs
            if retry_secs is None:
                raise
            time.sleep(retry_secs)
    return call()
