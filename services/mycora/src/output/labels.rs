//! States and reasons in plain words.

use model::ReasonCode;
use proto::convert::enums;
use proto::v1;

/// So many of something: `1 job`, `2 jobs`.
#[must_use]
pub fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// A job's state as shown to people.
#[must_use]
pub const fn node_state(state: v1::NodeState) -> &'static str {
    match state {
        v1::NodeState::Unspecified => "unknown",
        v1::NodeState::Pending => "pending",
        v1::NodeState::Ready => "ready",
        // On its way to a machine, or in the queue there: nothing executes it yet.
        v1::NodeState::Dispatched => "queued",
        v1::NodeState::Running => "running",
        v1::NodeState::Completed => "completed",
        v1::NodeState::Failed => "failed",
        v1::NodeState::Cancelled => "cancelled",
        v1::NodeState::Skipped => "skipped",
    }
}

/// The status of a job that is kept, or belongs to a flow, in the same words. It is a text of Redis, which old readers share.
#[must_use]
pub fn job_status(status: &str) -> &str {
    match status {
        "dispatched" => "queued",
        "started" => "running",
        "finished" => "completed",
        "error" => "failed",
        other => other,
    }
}

/// A flow's status as shown to people, in the words of its jobs.
#[must_use]
pub const fn flow_status(status: v1::FlowStatus) -> &'static str {
    match status {
        v1::FlowStatus::Unspecified => "unknown",
        v1::FlowStatus::Created => "created",
        v1::FlowStatus::Started => "running",
        v1::FlowStatus::Finished => "completed",
        v1::FlowStatus::Error => "failed",
        v1::FlowStatus::Cancelled => "cancelled",
    }
}

/// A script type in lower case.
#[must_use]
pub fn script_type(script_type: v1::ScriptType) -> &'static str {
    enums::script_type_from_wire(script_type.into()).map_or("unknown", |kind| kind.as_str())
}

/// In which respect a node was looked at.
#[must_use]
pub const fn finding(kind: v1::FindingKind) -> &'static str {
    match kind {
        v1::FindingKind::Unspecified => "other",
        v1::FindingKind::Flow => "flow",
        v1::FindingKind::Dependencies => "dependencies",
        v1::FindingKind::Prerequisites => "prerequisites",
        v1::FindingKind::BackOff => "back-off",
        v1::FindingKind::Routing => "routing",
        v1::FindingKind::Liveness => "liveness",
        v1::FindingKind::Delivery => "delivery",
        v1::FindingKind::Attempt => "attempt",
        v1::FindingKind::Limits => "limits",
    }
}

/// Note on a node that was closed as cancelled without the supervisor's confirmation.
pub const UNCONFIRMED: &str = "(unconfirmed: it may still be running)";

/// Why the try before the current one ended, when that is why a node waits.
#[must_use]
pub fn failed_try(reason: &v1::Reason) -> Option<String> {
    match reason.code.parse::<ReasonCode>() {
        Ok(ReasonCode::BackingOff) => {
            // The detail of a back-off is the reason of the try that failed.
            let model::Reason { code, detail } = reason.detail.parse().ok()?;
            let why = described(&v1::Reason { code: code.as_str().to_owned(), detail });
            Some(format!("failed: {why}"))
        }
        Ok(ReasonCode::Returned) if reason.detail.is_empty() => Some("was handed back unstarted".to_owned()),
        _ => None,
    }
}

/// Why a node is where it is. The detail is the server's; codes of a newer server stay codes.
#[must_use]
pub fn reason(reason: &v1::Reason) -> String {
    match failed_try(reason) {
        Some(failed) => format!("it waits before the next try; the last {failed}"),
        None => described(reason),
    }
}

fn described(reason: &v1::Reason) -> String {
    let v1::Reason { code, detail } = reason;
    // Their details are whole sentences with the same content, more exact.
    let explained_by_detail = [ReasonCode::NoLiveRunner, ReasonCode::ExitCode, ReasonCode::ConditionNotMet];
    if code == ReasonCode::Waiting.as_str() && !detail.is_empty() {
        return format!("it waits {detail}");
    }
    if !detail.is_empty() && explained_by_detail.iter().any(|known| known.as_str() == code) {
        return detail.clone();
    }
    let text = code.parse::<ReasonCode>().map_or(code.as_str(), |known| code_text(known));
    if detail.is_empty() { text.to_owned() } else { format!("{text} ({detail})") }
}

const fn code_text(code: ReasonCode) -> &'static str {
    match code {
        ReasonCode::Waiting => "something outside the flow has to happen first",
        ReasonCode::PrerequisiteImpossible => "what it waits for can never come",
        ReasonCode::WhenFailed => "its `when` cannot be evaluated",
        ReasonCode::NoLiveRunner => "no live runner of this context accepts it",
        ReasonCode::BackingOff => "it waits before the next try",
        ReasonCode::ExitCode => "the script ended with an error",
        ReasonCode::Timeout => "the script ran longer than its timeout",
        ReasonCode::TimeoutResult => "its end did not arrive in time",
        ReasonCode::TimeoutAck => "no supervisor accepted it in time",
        ReasonCode::TimeoutQueue => "it did not start in time",
        ReasonCode::Deadline => "the flow's deadline passed",
        ReasonCode::InstanceLost => "the instance that ran it vanished",
        ReasonCode::SupervisorLost => "the supervisor that held it vanished",
        ReasonCode::Drained => "the instance that ran it was drained",
        ReasonCode::Quarantined => "it is quarantined; `mycora flow retry` lets it run again",
        ReasonCode::Stopped => "it was stopped at its supervisor",
        ReasonCode::Undeliverable => "it could not be delivered",
        ReasonCode::Refused => "the supervisor refused it",
        ReasonCode::Unknown => "it is unknown whether it ran: its supervisor's answer cannot be read",
        ReasonCode::Returned => "it was handed back unstarted",
        ReasonCode::RuntimeError => "running the script failed",
        ReasonCode::MissingResult => "a result that it refers to was not given",
        ReasonCode::EnvTooLarge => "its environment is too large",
        ReasonCode::InputsTooLarge => "the results it reads are too large",
        ReasonCode::ResultTooLarge => "its result is too large",
        ReasonCode::BlobMissing => "a file that it needs is not there any more",
        ReasonCode::IsolationUnavailable => "no runner offers the isolation that it requires",
        ReasonCode::NetworkRefused => "the supervisor's policy denies it the network",
        ReasonCode::PolicyRefused => "the supervisor's policy rejects it",
        ReasonCode::SignatureRefused => "the signature of its actor is not accepted",
        ReasonCode::OutOfMemory => "it used more memory than it may",
        ReasonCode::QuotaExceeded => "it holds more on the disk than it may",
        ReasonCode::DiskFull => "a disk has no room",
        ReasonCode::UpstreamFailed => "a job before it failed",
        ReasonCode::ConditionNotMet => "its run_if or when says no",
        ReasonCode::FlowCancelled => "the flow was cancelled",
        ReasonCode::NodeCancelled => "it was cancelled",
        ReasonCode::FailFast => "another job failed and the flow says fail_fast",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_and_jobs_share_their_status_labels() {
        let pairs = [
            (v1::FlowStatus::Started, v1::NodeState::Running),
            (v1::FlowStatus::Finished, v1::NodeState::Completed),
            (v1::FlowStatus::Error, v1::NodeState::Failed),
            (v1::FlowStatus::Cancelled, v1::NodeState::Cancelled),
        ];
        for (flow, job) in pairs {
            assert_eq!(flow_status(flow), node_state(job));
        }
        assert_eq!(node_state(v1::NodeState::Dispatched), "queued");
        for (kept, shown) in [("dispatched", "queued"), ("finished", "completed"), ("skipped", "skipped")] {
            assert_eq!(job_status(kept), shown);
        }
    }

    #[test]
    fn reasons_are_described_with_their_detail() {
        let described =
            |code: &str, detail: &str| reason(&v1::Reason { code: code.into(), detail: detail.into() });
        assert_eq!(described("TIMEOUT", ""), "the script ran longer than its timeout");
        assert_eq!(described("EXIT_CODE", "exit code 3"), "exit code 3");
        assert_eq!(described("REFUSED", "queue full"), "the supervisor refused it (queue full)");
        let after = v1::Reason { code: "BACKING_OFF".into(), detail: "EXIT_CODE: exit code 3".into() };
        assert_eq!(reason(&after), "it waits before the next try; the last failed: exit code 3");
        assert_eq!(failed_try(&after).as_deref(), Some("failed: exit code 3"));
        assert_eq!(described("NEW_IN_LATER_VERSIONS", ""), "NEW_IN_LATER_VERSIONS");
    }
}
