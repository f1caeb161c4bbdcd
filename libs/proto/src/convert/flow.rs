//! Flows.

use model::id::ParseIdError;
use model::{
    ContextUid, Epoch, Flow, FlowEvent, FlowId, FlowStatus, Generation, JobId, Rerun, Revision, TraceParent,
};

use crate::convert::{enums, time};
use crate::{internal, v1};

/// To the wire. The wire carries the number of nodes, not the list of jobs.
#[must_use]
pub fn to_wire(flow: &Flow) -> v1::Flow {
    let Flow {
        id,
        uid,
        name,
        caller_id,
        context_id,
        jobs,
        env_vars,
        result,
        result_truncated,
        fail_fast,
        deadline,
        cancel_requested_time,
        cancel_timeout_secs,
        created_at,
        updated_at,
        status,
        generation,
        revision,
        rerun: _,
        owner: _,
        epoch: _,
        cancel_grace_secs: _,
        trace: _,
    } = flow;
    v1::Flow {
        id: id.0,
        uid: uid.to_string(),
        name: name.to_string(),
        caller_id: caller_id.0,
        context_id: context_id.0,
        env_vars: env_vars.clone(),
        result: result.clone(),
        result_truncated: *result_truncated,
        fail_fast: *fail_fast,
        deadline_time: deadline.map(time::to_wire),
        cancel_requested_time: cancel_requested_time.map(time::to_wire),
        cancel_timeout_secs: *cancel_timeout_secs,
        create_time: Some(time::to_wire(*created_at)),
        update_time: Some(time::to_wire(*updated_at)),
        status: enums::flow_status_to_wire(*status).into(),
        generation: generation.0,
        revision: revision.0,
        node_count: u32::try_from(jobs.len()).unwrap_or(u32::MAX),
    }
}

/// The flow as it was after `change`; `flow` is a reading of another time. Fields that change while it runs are the event's. A result
/// that the event lacks is that of `flow` where both have the same end; otherwise it is lost, and marked as incomplete.
#[must_use]
pub fn apply_event(flow: &v1::Flow, change: &FlowEvent, revision: Revision) -> v1::Flow {
    // Its name, its caller and the time when it was made do not change.
    let FlowEvent { status, generation, deadline, cancel_requested_time, time: at, .. } = change;
    let status = status.map_or(v1::FlowStatus::Unspecified, enums::flow_status_to_wire);
    let ends = change.status.is_some_and(FlowStatus::is_end);
    let is_same_end = ends && flow.generation == generation.0 && flow.status() == status;
    let (result, result_truncated) = match &change.result {
        Some(result) => (result.clone().into_iter().collect(), false),
        None if is_same_end => (flow.result.clone(), flow.result_truncated),
        None => (Default::default(), ends),
    };
    v1::Flow {
        result,
        result_truncated,
        deadline_time: deadline.map(time::to_wire),
        cancel_requested_time: cancel_requested_time.map(time::to_wire),
        update_time: Some(time::to_wire(*at)),
        status: status.into(),
        generation: generation.0,
        revision: revision.0,
        ..flow.clone()
    }
}

/// The flow in short.
#[must_use]
pub fn summary(flow: &v1::Flow) -> v1::FlowSummary {
    v1::FlowSummary {
        id: flow.id,
        name: flow.name.clone(),
        caller_id: flow.caller_id,
        status: flow.status,
        generation: flow.generation,
        revision: flow.revision,
        create_time: flow.create_time,
        update_time: flow.update_time,
        deadline_time: flow.deadline_time,
        cancel_requested_time: flow.cancel_requested_time,
    }
}

/// The flow in short as it was after `change`; nothing when the change does not say all of that, as those from before it was noted,
/// and those of a flow that is gone.
#[must_use]
pub fn summary_at(change: &FlowEvent, revision: Revision) -> Option<v1::FlowSummary> {
    let FlowEvent {
        flow_id,
        status,
        generation,
        name,
        caller_id,
        created_at,
        deadline,
        cancel_requested_time,
        result: _,
        time: at,
    } = change;
    Some(v1::FlowSummary {
        id: flow_id.0,
        name: name.as_ref()?.to_string(),
        caller_id: caller_id.as_ref()?.0,
        status: enums::flow_status_to_wire((*status)?).into(),
        generation: generation.0,
        revision: revision.0,
        create_time: Some(time::to_wire((*created_at)?)),
        update_time: Some(time::to_wire(*at)),
        deadline_time: deadline.map(time::to_wire),
        cancel_requested_time: cancel_requested_time.map(time::to_wire),
    })
}

/// A flow with what only its owner needs.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnedFlowRecord {
    /// The flow. Its list of jobs stays empty: it comes with the nodes.
    pub flow: Flow,
    /// The uid of its context.
    pub context_uid: ContextUid,
    /// The last step that was applied, or the change of owner.
    pub last_commit: String,
    /// How many nodes it has or is to have.
    pub node_count: u32,
    /// The first of its jobs; the others follow one after the other.
    pub first_job: JobId,
}

/// To the wire, with what only the owner needs.
#[must_use]
pub fn to_record(record: &OwnedFlowRecord) -> internal::v1::FlowRecord {
    let OwnedFlowRecord { flow, context_uid, last_commit, node_count, first_job } = record;
    let rerun = flow.rerun.as_ref().map(|rerun| serde_json::to_string(rerun).expect("a choice is JSON"));
    internal::v1::FlowRecord {
        flow: Some(v1::Flow { node_count: *node_count, ..to_wire(flow) }),
        context_uid: context_uid.to_string(),
        owner: flow.owner.map(|owner| owner.to_string()).unwrap_or_default(),
        epoch: flow.epoch.0,
        last_commit: last_commit.clone(),
        rerun_json: rerun.unwrap_or_default(),
        first_job_id: first_job.0,
        cancel_grace_secs: flow.cancel_grace_secs,
        traceparent: flow.trace.map(|trace| trace.to_string()).unwrap_or_default(),
    }
}

/// A flow record that storage sent could not be read: the two do not fit together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireRecordError(pub String);

impl std::fmt::Display for WireRecordError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a flow record cannot be read: {}", self.0)
    }
}

impl std::error::Error for WireRecordError {}

impl From<ParseIdError> for WireRecordError {
    fn from(error: ParseIdError) -> Self {
        Self(error.to_string())
    }
}

/// From the wire.
///
/// # Errors
/// Says which part cannot be read.
pub fn from_record(record: internal::v1::FlowRecord) -> Result<OwnedFlowRecord, WireRecordError> {
    let internal::v1::FlowRecord {
        flow,
        context_uid,
        owner,
        epoch,
        last_commit,
        rerun_json,
        first_job_id,
        cancel_grace_secs,
        traceparent,
    } = record;
    let v1::Flow {
        id,
        uid,
        name,
        caller_id,
        context_id,
        env_vars,
        result,
        result_truncated,
        fail_fast,
        deadline_time,
        cancel_requested_time,
        cancel_timeout_secs,
        create_time,
        update_time,
        status,
        generation,
        revision,
        node_count,
    } = flow.ok_or_else(|| WireRecordError("no flow".into()))?;
    let flow = Flow {
        id: FlowId(id),
        uid: uid.parse()?,
        name: name.parse().map_err(|error| WireRecordError(format!("{error}")))?,
        caller_id: model::ActorId(caller_id),
        context_id: model::ContextId(context_id),
        jobs: Vec::new(),
        env_vars,
        result,
        result_truncated,
        fail_fast,
        deadline: deadline_time.map(time::from_wire),
        cancel_requested_time: cancel_requested_time.map(time::from_wire),
        cancel_timeout_secs,
        created_at: time::required(create_time),
        updated_at: time::required(update_time),
        status: enums::flow_status_from_wire(status).ok_or_else(|| WireRecordError("no status".into()))?,
        generation: Generation(generation),
        rerun: parse_rerun(&rerun_json)?,
        revision: Revision(revision),
        owner: if owner.is_empty() { None } else { Some(owner.parse()?) },
        epoch: Epoch(epoch),
        cancel_grace_secs,
        trace: TraceParent::read(&traceparent),
    };
    let first_job = JobId(first_job_id);
    Ok(OwnedFlowRecord { flow, context_uid: context_uid.parse()?, last_commit, node_count, first_job })
}

fn parse_rerun(json: &str) -> Result<Option<Rerun>, WireRecordError> {
    match json {
        "" => Ok(None),
        json => serde_json::from_str(json).map(Some).map_err(|error| WireRecordError(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use model::Timestamp;

    use super::*;

    #[test]
    fn a_watch_is_sent_the_flow_as_of_the_event() {
        let time_of = |millis| Some(time::to_wire(Timestamp::from_millis(millis)));
        let later = v1::Flow {
            id: 7,
            result: [("a.k".to_owned(), "1".to_owned())].into(),
            cancel_requested_time: time_of(9000),
            update_time: time_of(9000),
            status: v1::FlowStatus::Finished.into(),
            generation: 2,
            revision: 90,
            ..v1::Flow::default()
        };
        let change = |status, generation| FlowEvent {
            flow_id: FlowId(7),
            status: Some(status),
            generation: Generation(generation),
            name: None,
            caller_id: None,
            created_at: None,
            deadline: Some(Timestamp::from_millis(5000)),
            cancel_requested_time: None,
            result: None,
            time: Timestamp::from_millis(1000),
        };
        let sent = apply_event(&later, &change(FlowStatus::Started, 2), Revision(10));
        let expected = v1::Flow {
            result: Default::default(),
            deadline_time: time_of(5000),
            cancel_requested_time: None,
            update_time: time_of(1000),
            status: v1::FlowStatus::Started.into(),
            revision: 10,
            ..later.clone()
        };
        assert_eq!(sent, expected, "it was read after it had ended");
        let sent = apply_event(&later, &change(FlowStatus::Finished, 2), Revision(10));
        assert_eq!((&sent.result, sent.result_truncated), (&later.result, false));
        let sent = apply_event(&later, &change(FlowStatus::Finished, 1), Revision(10));
        assert!(sent.result.is_empty() && sent.result_truncated, "the result of that run is gone");
        let result: model::flow::ResultMap = [("a.k".to_owned(), "0".to_owned())].into();
        let change = FlowEvent { result: Some(result.clone()), ..change(FlowStatus::Finished, 1) };
        let sent = apply_event(&later, &change, Revision(10));
        assert_eq!(
            (sent.result.into_iter().collect(), sent.result_truncated),
            (result, false),
            "it came along"
        );
    }

    #[test]
    fn a_complete_change_makes_the_same_summary_as_the_flow() {
        let change = FlowEvent {
            flow_id: FlowId(7),
            status: Some(FlowStatus::Cancelled),
            generation: Generation(2),
            name: Some("night".parse().expect("a name")),
            caller_id: Some(model::ActorId(3)),
            created_at: Some(Timestamp::from_millis(500)),
            deadline: None,
            cancel_requested_time: Some(Timestamp::from_millis(900)),
            result: None,
            time: Timestamp::from_millis(1000),
        };
        let flow = v1::Flow {
            id: 7,
            name: "night".to_owned(),
            caller_id: 3,
            create_time: Some(time::to_wire(Timestamp::from_millis(500))),
            ..v1::Flow::default()
        };
        let sent = summary_at(&change, Revision(10)).expect("it says all of it");
        assert_eq!(sent, summary(&apply_event(&flow, &change, Revision(10))));
        for lacking in [
            FlowEvent { name: None, ..change.clone() },
            FlowEvent { caller_id: None, ..change.clone() },
            FlowEvent { created_at: None, ..change.clone() },
            FlowEvent { status: None, ..change.clone() },
        ] {
            assert_eq!(summary_at(&lacking, Revision(10)), None);
        }
    }
}
