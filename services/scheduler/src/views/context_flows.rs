//! Watching the flows of a context: a snapshot of those that match, then each change of one of them.
//!
//! The snapshot is read after a position, page by page, and everything that happened since that position is sent before it is
//! closed: no flow and no end falls between them. A change that a page already shows is left out, so that no flow goes back.

use std::collections::HashMap;

use model::{ActorId, ContextEvent, ContextId, FlowEvent, FlowId, Revision};
use proto::convert;
use proto::internal::v1::{ReadFlowRequest, ReadFlowsRequest, ReadFlowsResponse, WatchEventsRequest};
use proto::v1::watch_flows_response::Event as Answer;
use proto::v1::{
    Flow, FlowSnapshot, FlowStatus, FlowSummary, Heartbeat, RemovedFlow, SnapshotEnd, WatchFlowsResponse,
};
use tonic::{Code, Status};

use crate::clients::FlowStoreClient;
use crate::error::bad_store;
use crate::views::answers::{AnswerSender, Ended};
use crate::views::position::revision_of;
use crate::views::reader::{FlowEventStream, query};

/// Flows read in one call.
const PAGE: u32 = 500;

/// Where a watch begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextFlowsStart {
    /// With the flows of each of these statuses, one after the other.
    Snapshot(&'static [FlowStatus]),
    /// With what changes from now on.
    Now,
    /// With what changed after this position.
    After(String),
}

impl ContextFlowsStart {
    /// Start that a caller requests.
    #[must_use]
    pub fn of(snapshot: FlowSnapshot, resume_position: String) -> Self {
        match snapshot {
            _ if !resume_position.is_empty() => Self::After(resume_position),
            FlowSnapshot::Unspecified => Self::Snapshot(&[FlowStatus::Unspecified]),
            // A flow that is started in between is in the second list, or its end is an event.
            FlowSnapshot::Open => Self::Snapshot(&[FlowStatus::Created, FlowStatus::Started]),
            FlowSnapshot::None => Self::Now,
        }
    }
}

/// The flows of a context that match, seen by an actor. Every method fails as storage does: NOT_FOUND where the actor has no role.
#[derive(Debug)]
pub struct ContextFlowsReader {
    store: FlowStoreClient,
    actor: ActorId,
    context: ContextId,
    /// Only flows of this actor; 0: all.
    caller_id: u32,
    /// Only flows whose name begins so.
    name_prefix: String,
    /// Storage is waited for while it is away.
    is_patient: bool,
}

impl ContextFlowsReader {
    /// A reader for `actor`, of the flows of one caller (0: of all) whose names begin so.
    #[must_use]
    pub const fn new(
        store: FlowStoreClient,
        actor: ActorId,
        context: ContextId,
        caller_id: u32,
        name_prefix: String,
    ) -> Self {
        Self { store, actor, context, caller_id, name_prefix, is_patient: false }
    }

    /// Returns true when a flow of this name and this caller is selected. Unknown values exclude nothing.
    fn matches(&self, name: Option<&str>, caller_id: Option<u32>) -> bool {
        let is_callers = self.caller_id == 0 || caller_id.is_none_or(|caller| caller == self.caller_id);
        is_callers && name.is_none_or(|name| name.starts_with(&self.name_prefix))
    }

    async fn page(&self, status: FlowStatus, page_token: String) -> Result<ReadFlowsResponse, Status> {
        let request = ReadFlowsRequest {
            context_id: self.context.0,
            on_behalf_of: self.actor.0,
            status: status.into(),
            page_size: PAGE,
            page_token,
            caller_id: self.caller_id,
            name_prefix: self.name_prefix.clone(),
            to_watch: true,
            ..ReadFlowsRequest::default()
        };
        query(&self.store, self.is_patient, |mut store| {
            let request = request.clone();
            async move { store.read_flows(request).await }
        })
        .await
    }

    /// The flow of this number as it is now; nothing when it is gone.
    async fn flow(&self, flow: FlowId) -> Result<Option<Flow>, Status> {
        let (context_id, on_behalf_of) = (self.context.0, self.actor.0);
        let request =
            ReadFlowRequest { context_id, flow_id: flow.0, on_behalf_of, ..ReadFlowRequest::default() };
        let read =
            query(&self.store, self.is_patient, |mut store| async move { store.read_flow(request).await });
        match read.await {
            Ok(answer) => Ok(answer.flow.and_then(|record| record.flow)),
            // If the context is gone as well, the events say so.
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Changes of flows after a position, from now on when it is empty.
    async fn events(&self, position: String) -> Result<FlowEventStream, Status> {
        let request = WatchEventsRequest {
            context_id: self.context.0,
            flow_id: 0,
            on_behalf_of: self.actor.0,
            position,
            only_flows: true,
            first_nodes: 0,
        };
        FlowEventStream::open(&self.store, request, self.is_patient).await
    }
}

/// One watcher of the flows of a context.
pub struct ContextFlowsWatch {
    reader: ContextFlowsReader,
    answers: AnswerSender<WatchFlowsResponse>,
    /// Revision as of which the snapshot shows each flow that has changed since it was begun.
    shown: HashMap<FlowId, Revision>,
}

impl ContextFlowsWatch {
    /// A watcher that is sent its answers through `answers`.
    #[must_use]
    pub fn new(reader: ContextFlowsReader, answers: AnswerSender<WatchFlowsResponse>) -> Self {
        Self { reader, answers, shown: HashMap::new() }
    }

    /// Runs until the watcher has gone or something failed; a failure is the last thing that the watcher is sent.
    pub async fn run(mut self, begin: ContextFlowsStart) {
        if let Err(ended) = self.watch(begin).await {
            self.answers.end(ended);
        }
    }

    async fn watch(&mut self, begin: ContextFlowsStart) -> Result<(), Ended> {
        let mut in_snapshot = matches!(begin, ContextFlowsStart::Snapshot(_));
        let is_now = begin == ContextFlowsStart::Now;
        let position = match begin {
            ContextFlowsStart::Snapshot(statuses) => self.snapshot(statuses).await?,
            ContextFlowsStart::Now => String::new(),
            ContextFlowsStart::After(position) => position,
        };
        let mut events = self.reader.events(position).await?;
        self.reader.is_patient = true;
        let mut reached = events.begin.clone();
        if is_now {
            self.send(Answer::SnapshotEnd(SnapshotEnd {}), reached.clone()).await?;
        }
        loop {
            let Some(next) = self.answers.heartbeat.or_due(events.next()).await else {
                let place = if in_snapshot { String::new() } else { reached.clone() };
                self.send(Answer::Heartbeat(Heartbeat {}), place).await?;
                continue;
            };
            let (event, position) = next?;
            reached.clone_from(&position);
            match event {
                Some(ContextEvent::Flow(change)) => {
                    let place = if in_snapshot { String::new() } else { position.clone() };
                    self.change(&change, revision_of(&position), place).await?;
                }
                // The stream has sent everything that existed when it began.
                None if std::mem::take(&mut in_snapshot) => {
                    self.shown = HashMap::new();
                    self.send(Answer::SnapshotEnd(SnapshotEnd {}), position).await?;
                }
                _ => {}
            }
        }
    }

    /// Sends the flows of these statuses; gives the position before which nothing is missing in them.
    async fn snapshot(&mut self, statuses: &[FlowStatus]) -> Result<String, Ended> {
        let (mut begin, mut begun) = (String::new(), Revision(0));
        for status in statuses {
            let mut token = String::new();
            loop {
                let page = self.reader.page(*status, token).await?;
                self.reader.is_patient = true;
                if page.position.is_empty() {
                    return Err(Ended::from(bad_store("flows without a position to watch them from")));
                }
                if begin.is_empty() {
                    begun = revision_of(&page.position);
                    begin = page.position;
                }
                for flow in &page.flows {
                    if Revision(flow.revision) > begun {
                        self.shown.insert(FlowId(flow.id), Revision(flow.revision));
                    }
                    self.send(Answer::Flow(convert::flow::summary(flow)), String::new()).await?;
                }
                if page.next_page_token.is_empty() {
                    break;
                }
                token = page.next_page_token;
                self.sign_of_life().await?;
            }
        }
        Ok(begin)
    }

    /// Says that the snapshot is still being read, where few of many flows match.
    async fn sign_of_life(&mut self) -> Result<(), Ended> {
        if self.answers.heartbeat.or_due(std::future::ready(())).await.is_none() {
            self.send(Answer::Heartbeat(Heartbeat {}), String::new()).await?;
        }
        Ok(())
    }

    /// Sends what a change means to the watcher.
    async fn change(&mut self, change: &FlowEvent, revision: Revision, place: String) -> Result<(), Ended> {
        if self.shown.get(&change.flow_id).is_some_and(|shown| revision <= *shown) {
            return Ok(());
        }
        let (name, caller) = (change.name.as_ref(), change.caller_id);
        if !self.reader.matches(name.map(AsRef::as_ref), caller.map(|caller| caller.0)) {
            return Ok(());
        }
        if change.status.is_none() {
            let removed = RemovedFlow { flow_id: change.flow_id.0 };
            return self.send(Answer::Removed(removed), place).await;
        }
        if let Some(flow) = self.summary(change, revision).await? {
            self.send(Answer::Flow(flow), place).await?;
        }
        Ok(())
    }

    /// Summary of the flow after a change. An old event does not say whose flow it is, so the flow itself is read; nothing when that
    /// is gone or does not match.
    async fn summary(&self, change: &FlowEvent, revision: Revision) -> Result<Option<FlowSummary>, Status> {
        if let Some(summary) = convert::flow::summary_at(change, revision) {
            return Ok(Some(summary));
        }
        let flow = self.reader.flow(change.flow_id).await?;
        let flow = flow.filter(|flow| self.reader.matches(Some(&flow.name), Some(flow.caller_id)));
        Ok(flow.map(|flow| convert::flow::summary(&convert::flow::apply_event(&flow, change, revision))))
    }

    async fn send(&mut self, event: Answer, resume_position: String) -> Result<(), Ended> {
        let answer = |resume_position| WatchFlowsResponse { event: Some(event), resume_position };
        self.answers.send(resume_position, answer, false).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_counts_for_more_than_a_snapshot() {
        let after = |snapshot| ContextFlowsStart::of(snapshot, "7.1-00".to_owned());
        for snapshot in [FlowSnapshot::Unspecified, FlowSnapshot::Open, FlowSnapshot::None] {
            assert_eq!(after(snapshot), ContextFlowsStart::After("7.1-00".to_owned()));
        }
        assert_eq!(ContextFlowsStart::of(FlowSnapshot::None, String::new()), ContextFlowsStart::Now);
        let open = ContextFlowsStart::of(FlowSnapshot::Open, String::new());
        assert_eq!(open, ContextFlowsStart::Snapshot(&[FlowStatus::Created, FlowStatus::Started]));
    }
}
