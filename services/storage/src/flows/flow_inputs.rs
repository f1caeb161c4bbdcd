//! Inputs that other parties send to a flow, kept until its owner has consumed them.

use bytes::Bytes;
use keys::FlowRef;
use kv::{Cmd, Value};
use model::{ActorId, Context, ContextEvent, ContextId, FlowId, FlowInput, FlowStatus, Timestamp, limits};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::flows::lifecycle::FlowInContext;
use crate::idempotency::{IdempotencyKey, hash_of};
use crate::record::flow::StoredFlow;
use crate::scripts;
use crate::store::{PERMISSION_TRIES, RequestPrincipal, Store, StoreChange, TenantStore};
use crate::tenants::actors::BOOTSTRAP;
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::ContextAction;

/// Inputs that are read at once.
const INPUTS_READ: usize = 256;

/// Something for a flow's owner.
#[derive(Debug, Clone)]
pub(crate) struct PushedFlowInput {
    /// The input.
    pub(crate) input: FlowInput,
    /// The input as JSON, as it is stored.
    pub(crate) json: Bytes,
    /// Payload that is stored with a signal.
    pub(crate) payload: String,
}

/// An input that is about to be stored.
struct FlowInputPush<'a> {
    context: &'a Context,
    flow: &'a StoredFlow,
    pushed: &'a PushedFlowInput,
    actor: ActorId,
    request: Option<&'a IdempotencyKey>,
}

impl FlowInputPush<'_> {
    fn change(
        &self,
        tenant: &TenantStore,
        audit_record: Option<&AuditRecord>,
        now: Timestamp,
    ) -> StoreChange {
        let Self { context, flow: stored, pushed, actor, request } = *self;
        let (flow, keys) = (stored.flow.id, &tenant.keys);
        let (record, nodes) = (keys.flow(flow), keys.flow_nodes(flow));
        let (inputs, signals) = (keys.flow_inputs(flow), keys.flow_signals(flow));
        let request_key = request.map(|request| keys.request(actor, &request.id));
        let mut touched = scripts::PUSH_INPUT
            .keys([
                ("flow", &record),
                ("inputs", &inputs),
                ("signals", &signals),
                ("flows_active", &tenant.flows_active),
                ("nodes", &nodes),
            ])
            .to_vec();
        touched.extend(request_key.as_deref());
        let (kind, more) = kind_of(flow, pushed, actor, now);
        tenant
            .begin_by(audit_record, &scripts::PUSH_INPUT, &touched, Some(context.uid), now)
            .named(kv::named![
                context_revision: context.revision.0,
                flow: flow.0,
                flow_uid: &stored.flow.uid.to_string(),
                input: &pushed.json[..],
                request_hash: hash_of(request),
                request_secs: limits::REQUEST_ID_KEEP_SECS,
                inputs_max: limits::FLOW_INPUTS_MAX,
                signals_max: limits::FLOW_SIGNALS_MAX,
                kind: kind,
            ])
            .args(&more)
    }
}

/// Reads the answer of the script: the revision, if it was raised, and whether nothing changed.
fn read_answer(value: Value) -> kv::Result<(Option<u64>, bool)> {
    let [revision, unchanged] = value.tuple()?;
    let revision = revision.uint()?;
    Ok(((revision > 0).then_some(revision), unchanged.int()? == 1))
}

impl Store {
    /// Stores an input for a flow's owner and notifies the owner. Returns whether it changed nothing.
    pub(crate) async fn push_input(
        &self,
        context: ContextId,
        flow: FlowId,
        pushed: &PushedFlowInput,
        asker: RequestPrincipal,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<(FlowInContext, bool)> {
        let actor = asker.actor()?;
        for _ in 0..PERMISSION_TRIES {
            let action = action_of(&pushed.input);
            let (tenant, stored, context) = self.changeable_flow(context, flow, asker, action).await?;
            let audit_record =
                AuditRecord::of(Some(actor), action, format_args!("flow {flow}")).with_request_id(request);
            let push = FlowInputPush { context: &context, flow: &stored, pushed, actor, request };
            let change = push.change(&tenant, Some(&audit_record), now);
            match tenant.apply(change, read_answer).await {
                Err(Error::ContextChanged(_)) => {}
                Err(error) => return Err(error),
                Ok(unchanged) => {
                    let stored = self.stored_flow(&tenant, flow).await?;
                    return Ok(((stored, context.uid), unchanged));
                }
            }
        }
        Err(Error::ContextChanged(context))
    }

    /// Has a flow cancelled that was interrupted, because its context was imported here. Nobody asks for it but the import.
    ///
    /// # Errors
    /// [`Error::WrongState`] when the flow does not run.
    pub(crate) async fn cancel_interrupted(
        &self,
        tenant: &TenantStore,
        flow: FlowId,
        now: Timestamp,
    ) -> Result<()> {
        let input = FlowInput::Cancel { grace_secs: 0 };
        let json = serde_json::to_vec(&input).expect("plain values are JSON").into();
        let pushed = PushedFlowInput { input, json, payload: String::new() };
        for _ in 0..PERMISSION_TRIES {
            let (stored, context) = (self.stored_flow(tenant, flow).await?, self.context(tenant.id).await?.1);
            let push = FlowInputPush {
                context: &context,
                flow: &stored,
                pushed: &pushed,
                actor: BOOTSTRAP,
                request: None,
            };
            match tenant.apply(push.change(tenant, None, now), read_answer).await {
                Err(Error::ContextChanged(_)) => {}
                result => return result.map(drop),
            }
        }
        Err(Error::ContextChanged(tenant.id))
    }

    /// Reads the inputs after the `known` oldest, up to the size of a page. The caller asks again until
    /// the answer is empty.
    pub(crate) async fn read_inputs(
        &self,
        context: ContextId,
        flow: FlowRef,
        known: usize,
    ) -> Result<Vec<Bytes>> {
        let tenant = self.tenant(context).await?;
        self.check_flow(&tenant, flow).await?;
        let (mut inputs, mut bytes) = (Vec::new(), 0);
        loop {
            let page = inputs_from(&tenant, flow.id, known + inputs.len()).await?;
            let is_last = page.len() < INPUTS_READ;
            for input in page {
                if !inputs.is_empty() && bytes + input.len() > limits::PAGE_BYTES_MAX {
                    return Ok(inputs);
                }
                bytes += input.len();
                inputs.push(input);
            }
            if is_last {
                return Ok(inputs);
            }
        }
    }

    /// The names of the signals that a flow was given.
    pub(crate) async fn signals(&self, tenant: &TenantStore, flow: FlowId) -> Result<Vec<String>> {
        let key = tenant.keys.flow_signals(flow);
        Ok(tenant.connection.cmd(Cmd::new("HKEYS").arg(&key)).await?.texts()?)
    }

    /// Reads the status of `awaited`, and registers `flow` for a touch when it ends. Nothing: there is no such flow.
    pub(crate) async fn await_flow(
        &self,
        context: ContextId,
        flow: FlowRef,
        awaited: FlowId,
        now: Timestamp,
    ) -> Result<Option<FlowStatus>> {
        let tenant = self.tenant(context).await?;
        let keys = &tenant.keys;
        let (waiting, other, waiters) = (keys.flow(flow.id), keys.flow(awaited), keys.flow_waiters(awaited));
        let touched =
            scripts::AWAIT_FLOW.keys([("flow", &waiting), ("awaited", &other), ("waiters", &waiters)]);
        let change = tenant
            .begin(&scripts::AWAIT_FLOW, &touched, None, now)
            .named(kv::named![flow: flow.id.0, flow_uid: &flow.uid.to_string()]);
        let status = tenant.call(change).await?.text()?;
        if status.is_empty() {
            return Ok(None);
        }
        let bad = |error| kv::Error::Protocol(format!("the status of flow {awaited}: {error}"));
        Ok(Some(status.parse().map_err(bad)?))
    }

    async fn check_flow(&self, tenant: &TenantStore, flow: FlowRef) -> Result<()> {
        let query = Cmd::new("HMGET").arg(&tenant.keys.flow(flow.id)).arg("uid").arg("deleting");
        let [uid, deleting] = tenant.connection.cmd(query).await?.tuple()?;
        if !deleting.is_nil() || uid.optional_text()?.is_none_or(|uid| uid != flow.uid.to_string()) {
            return Err(Error::not_found("flow", flow.id));
        }
        Ok(())
    }
}

/// Reads at most `INPUTS_READ` inputs, from list index `from` on, counted from 0.
pub(crate) async fn inputs_from(tenant: &TenantStore, flow: FlowId, from: usize) -> Result<Vec<Bytes>> {
    let query = Cmd::new("LRANGE").arg(&tenant.keys.flow_inputs(flow)).arg(from).arg(from + INPUTS_READ - 1);
    let values = tenant.connection.cmd(query).await?.array()?;
    Ok(values.into_iter().map(|value| value.bytes().map(Bytes::from)).collect::<kv::Result<_>>()?)
}

const fn action_of(input: &FlowInput) -> ContextAction {
    match input {
        FlowInput::Signal { .. } => ContextAction::SignalFlow,
        FlowInput::Cancel { .. } => ContextAction::CancelFlow,
        FlowInput::CancelNode { .. } => ContextAction::CancelNode,
        FlowInput::Report(_) => ContextAction::ReportNode,
    }
}

/// Kind of the input in the script's terms, and the script's arguments for that kind.
fn kind_of(
    flow: FlowId,
    pushed: &PushedFlowInput,
    actor: model::ActorId,
    now: Timestamp,
) -> (&'static str, Vec<String>) {
    #[derive(Serialize)]
    struct Signal<'a> {
        time: Timestamp,
        actor: model::ActorId,
        payload: &'a str,
    }
    match &pushed.input {
        FlowInput::Signal { name } => {
            let signal = Signal { time: now, actor, payload: &pushed.payload };
            let signal = serde_json::to_string(&signal).expect("plain values are JSON");
            ("signal", vec![name.as_str().to_owned(), signal])
        }
        FlowInput::Cancel { grace_secs } => {
            let event = ContextEvent::CancelRequested { flow_id: flow, actor, time: now };
            let event = serde_json::to_string(&event).expect("events are JSON");
            ("cancel", vec![grace_secs.to_string(), event])
        }
        FlowInput::CancelNode { job_id } => ("cancel_node", vec![job_id.to_string()]),
        FlowInput::Report(_) => ("other", Vec::new()),
    }
}
