//! MessageBoxService.

use futures_util::StreamExt as _;
use model::{
    ActorId, ContextId, DirectMessage, DirectMessageOrigin, FlowId, MessageFormat, MessageKey, Timestamp,
    Violations,
};
use proto::convert::{enums, time};
use proto::internal::v1 as wire;
use proto::internal::v1::message_box_service_server::MessageBoxService;
use proto::required::{check, missing};
use proto::v1;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::status::{checked, field};
use super::{StorageResponseStream, StorageRpc, request_of};
use crate::error::Error;
use crate::mail::inbox_watch::InboxWatch;
use crate::mail::mailbox::{IncomingDirectMessage, MailAcceptance};
use crate::mail::message_lists::MessageFilter;
use crate::mail::outgoing::{DirectMessageRecipient, DirectMessageSender, NewDirectMessage};
use crate::messages::message_holds::{message_key, parse_message_key};
use crate::pages::PageRequest;
use crate::record::message_record::{MessageHistoryEntry, MessageProjection, MessageRecord};
use crate::store::RequestPrincipal;

/// Messages that one call acknowledges.
const ACKNOWLEDGED_MAX: usize = 1000;

#[tonic::async_trait]
impl MessageBoxService for StorageRpc {
    async fn publish(
        &self,
        request: Request<wire::PublishRequest>,
    ) -> Result<Response<wire::PublishResponse>, Status> {
        let wire::PublishRequest { message, on_behalf_of } = request.into_inner();
        let mut body = required("message", message)?;
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = missing(&body);
        let repeatable = request_of(&request_id, &body, &mut violations);
        let context = ContextId(body.context_id);
        let caller = (body.caller_id != 0).then_some(ActorId(body.caller_id));
        let new = parse_new(body, &mut violations);
        if let Some(NewDirectMessage { to: DirectMessageRecipient::Elsewhere { address, .. }, .. }) = &new {
            self.check_address("to", Some(address), &mut violations);
        }
        let new = violations.into_result(new).map_err(Error::from)?;
        let sender =
            DirectMessageSender { context, asker: RequestPrincipal::from_wire(on_behalf_of), caller };
        let store = self.hub.store();
        let kept = store.publish(sender, &new, repeatable.as_ref(), &self.routers, Timestamp::now()).await?;
        Ok(Response::new(wire::PublishResponse { message: Some(to_wire(context, kept)) }))
    }

    async fn find_message(
        &self,
        request: Request<wire::FindMessageRequest>,
    ) -> Result<Response<wire::FindMessageResponse>, Status> {
        let wire::FindMessageRequest { message, on_behalf_of } = request.into_inner();
        let body = required("message", message)?;
        check(&body).map_err(Error::from)?;
        let v1::GetMessageRequest { context_id, key } = body;
        let (context, asker) = (ContextId(context_id), RequestPrincipal::from_wire(on_behalf_of));
        let key = named(&key)?;
        let (_, _, kept) =
            self.hub.store().visible_message(context, key, asker, MessageProjection::Whole).await?;
        Ok(Response::new(wire::FindMessageResponse { message: Some(to_wire(context, kept)) }))
    }

    async fn find_messages(
        &self,
        request: Request<wire::FindMessagesRequest>,
    ) -> Result<Response<wire::FindMessagesResponse>, Status> {
        let wire::FindMessagesRequest { list, on_behalf_of } = request.into_inner();
        let body = required("list", list)?;
        let mut violations = missing(&body);
        let v1::ListMessagesRequest { context_id, flow_id, message_type, status, page_size, page_token } =
            body;
        let (context, asker) = (ContextId(context_id), RequestPrincipal::from_wire(on_behalf_of));
        let filter = MessageFilter {
            flow: (flow_id != 0).then_some(FlowId(flow_id)),
            message_type: wanted(
                message_type,
                enums::message_type_from_wire,
                "message_type",
                &mut violations,
            ),
            status: wanted(status, enums::message_status_from_wire, "status", &mut violations),
        };
        let page = PageRequest::parse(page_size, &page_token, &mut violations);
        let (filter, page) = checked(violations, (filter, page))?;
        let (messages, next_page_token) =
            self.hub.store().list_messages(context, asker, filter, &page).await?;
        let messages = messages.into_iter().map(|kept| to_wire(context, kept)).collect();
        let page = v1::ListMessagesResponse { messages, next_page_token };
        Ok(Response::new(wire::FindMessagesResponse { page: Some(page) }))
    }

    async fn find_dead_letters(
        &self,
        request: Request<wire::FindDeadLettersRequest>,
    ) -> Result<Response<wire::FindDeadLettersResponse>, Status> {
        let wire::FindDeadLettersRequest { list, on_behalf_of } = request.into_inner();
        let body = required("list", list)?;
        let mut violations = missing(&body);
        let v1::ListDeadLettersRequest { context_id, page_size, page_token } = body;
        let (context, asker) = (ContextId(context_id), RequestPrincipal::from_wire(on_behalf_of));
        let page = PageRequest::parse(page_size, &page_token, &mut violations);
        let page = checked(violations, page)?;
        let (messages, next_page_token) = self.hub.store().list_dead_letters(context, asker, &page).await?;
        let messages = messages.into_iter().map(|kept| to_wire(context, kept)).collect();
        let page = v1::ListDeadLettersResponse { messages, next_page_token };
        Ok(Response::new(wire::FindDeadLettersResponse { page: Some(page) }))
    }

    async fn remove_message(
        &self,
        request: Request<wire::RemoveMessageRequest>,
    ) -> Result<Response<wire::RemoveMessageResponse>, Status> {
        let wire::RemoveMessageRequest { message, on_behalf_of } = request.into_inner();
        let mut body = required("message", message)?;
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = missing(&body);
        let repeatable = request_of(&request_id, &body, &mut violations);
        let repeatable = checked(violations, repeatable)?;
        let v1::DeleteMessageRequest { context_id, key, request_id: _ } = body;
        let (context, key, asker) =
            (ContextId(context_id), named(&key)?, RequestPrincipal::from_wire(on_behalf_of));
        let store = self.hub.store();
        store.remove_message(context, key, asker, repeatable.as_ref(), Timestamp::now()).await?;
        Ok(Response::new(wire::RemoveMessageResponse {}))
    }

    type WatchInboxStream = StorageResponseStream<wire::WatchInboxResponse>;

    async fn watch_inbox(
        &self,
        request: Request<wire::WatchInboxRequest>,
    ) -> Result<Response<Self::WatchInboxStream>, Status> {
        let wire::WatchInboxRequest { receive, on_behalf_of } = request.into_inner();
        let body = required("receive", receive)?;
        check(&body).map_err(Error::from)?;
        let v1::ReceiveMessagesRequest { context_id, actor_id, only_present } = body;
        let context = ContextId(context_id);
        let watch = InboxWatch {
            context,
            asker: RequestPrincipal::from_wire(on_behalf_of),
            actor: (actor_id != 0).then_some(ActorId(actor_id)),
            only_present,
        };
        let received = ReceiverStream::new(self.hub.watch_inbox(watch).await?).map(move |part| {
            let messages = part?.into_iter().map(|kept| to_wire(context, kept)).collect();
            Ok(wire::WatchInboxResponse { received: Some(v1::ReceiveMessagesResponse { messages }) })
        });
        Ok(Response::new(self.until_stop(received)))
    }

    async fn acknowledge(
        &self,
        request: Request<wire::AcknowledgeRequest>,
    ) -> Result<Response<wire::AcknowledgeResponse>, Status> {
        let wire::AcknowledgeRequest { acknowledge, on_behalf_of } = request.into_inner();
        let mut body = required("acknowledge", acknowledge)?;
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = missing(&body);
        let repeatable = request_of(&request_id, &body, &mut violations);
        let v1::AcknowledgeMessageRequest { context_id, actor_id, keys, request_id: _ } = body;
        if keys.len() > ACKNOWLEDGED_MAX {
            violations.add("keys", format!("at most {ACKNOWLEDGED_MAX}, not {}", keys.len()));
        }
        let parse = |(i, key): (usize, &String)| {
            let received = parse_message_key(key).filter(|key| key.caller == ActorId(0));
            violations.take(&format!("keys[{i}]"), received.ok_or("a received message is message:0:<id>"))
        };
        let keys: Vec<MessageKey> =
            keys.iter().enumerate().take(ACKNOWLEDGED_MAX).filter_map(parse).collect();
        let keys = checked(violations, keys)?;
        let (context, asker) = (ContextId(context_id), RequestPrincipal::from_wire(on_behalf_of));
        let actor = (actor_id != 0).then_some(ActorId(actor_id));
        let store = self.hub.store();
        let acknowledged_count =
            store.acknowledge(context, asker, actor, &keys, repeatable.as_ref(), Timestamp::now()).await?;
        Ok(Response::new(wire::AcknowledgeResponse { acknowledged_count }))
    }

    async fn resend(
        &self,
        request: Request<wire::ResendRequest>,
    ) -> Result<Response<wire::ResendResponse>, Status> {
        let wire::ResendRequest { resend, on_behalf_of } = request.into_inner();
        let mut body = required("resend", resend)?;
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = missing(&body);
        let repeatable = request_of(&request_id, &body, &mut violations);
        let repeatable = checked(violations, repeatable)?;
        let (context, key) = (ContextId(body.context_id), named(&body.key)?);
        let asker = RequestPrincipal::from_wire(on_behalf_of);
        let kept =
            self.hub.store().resend(context, key, asker, repeatable.as_ref(), Timestamp::now()).await?;
        Ok(Response::new(wire::ResendResponse { message: Some(to_wire(context, kept)) }))
    }

    async fn accept_letter(
        &self,
        request: Request<wire::AcceptLetterRequest>,
    ) -> Result<Response<wire::AcceptLetterResponse>, Status> {
        let wire::AcceptLetterRequest { letter_json, verified, foreign } = request.into_inner();
        let message: DirectMessage = field("letter_json", serde_json::from_slice(&letter_json))?;
        let arrival = IncomingDirectMessage { message, verified, foreign };
        let answer = match self.hub.store().accept_direct_message(&arrival, Timestamp::now()).await? {
            MailAcceptance::Kept { key, duplicate } => {
                wire::AcceptLetterResponse { message_key: key, duplicate, ..Default::default() }
            }
            MailAcceptance::Refused { reason, detail } => wire::AcceptLetterResponse {
                refusal: detail,
                reason: reason.as_str().to_owned(),
                lasting: reason.is_lasting(),
                ..Default::default()
            },
        };
        Ok(Response::new(answer))
    }
}

fn required<T>(name: &str, part: Option<T>) -> Result<T, Error> {
    part.ok_or_else(|| Error::field(name, "is missing"))
}

/// Parses a message key; any other text is reported as not found.
fn named(key: &str) -> Result<MessageKey, Error> {
    let shown: String = key.chars().take(80).collect();
    parse_message_key(key).ok_or_else(|| Error::not_found("message", shown))
}

/// Parses a filter value; nothing means any.
fn wanted<T>(
    number: i32,
    from_wire: impl FnOnce(i32) -> Option<T>,
    field: &str,
    violations: &mut Violations,
) -> Option<T> {
    if number == 0 {
        return None;
    }
    violations.take(field, from_wire(number).ok_or("no value of this number"))
}

fn parse_new(request: v1::SendMessageRequest, violations: &mut Violations) -> Option<NewDirectMessage> {
    let v1::SendMessageRequest {
        request_id: _,
        context_id: _,
        caller_id: _,
        to,
        target_context,
        message_type,
        format,
        topic,
        text,
        timeout_ack_secs,
        signature,
    } = request;
    let to = violations.take("to", DirectMessageRecipient::of_message(&to));
    let message_type = enums::message_type_from_wire(message_type).ok_or("say chat or mail");
    let message_type = violations.take("message_type", message_type);
    let format = wanted(format, enums::message_format_from_wire, "format", violations);
    let target_context = (target_context != 0).then_some(ContextId(target_context));
    let how = (target_context, format.unwrap_or(MessageFormat::Text));
    NewDirectMessage::of_parts(
        (to, message_type),
        how,
        (topic, text),
        timeout_ack_secs,
        signature,
        violations,
    )
}

fn to_wire(context: ContextId, kept: MessageRecord) -> v1::Message {
    let MessageRecord {
        key,
        from_pubkey,
        to,
        target_context,
        topic,
        message_type,
        format,
        text,
        flow,
        job_keys,
        timeout_ack_secs,
        status,
        error,
        transport_status,
        origin,
        foreign,
        verified,
        logs,
        created_at,
        updated_at,
        revision,
    } = kept;
    let entry =
        |MessageHistoryEntry { time, text }| v1::MessageLogEntry { time: Some(time::to_wire(time)), text };
    v1::Message {
        key: message_key(key),
        context_id: context.0,
        caller_id: key.caller.0,
        message_id: key.id.0,
        from_pubkey,
        to,
        target_context: target_context.map_or(0, |id| id.0),
        topic,
        message_type: enums::message_type_to_wire(message_type).into(),
        format: enums::message_format_to_wire(format).into(),
        text,
        flow_id: flow.map_or(0, |id| id.0),
        job_keys,
        timeout_ack_secs,
        status: enums::message_status_to_wire(status).into(),
        error,
        transport_status: enums::transport_status_to_wire(transport_status).into(),
        origin: origin.map(|origin| origin_to_wire(origin, !foreign)),
        verified,
        logs: logs.into_iter().map(entry).collect(),
        create_time: Some(time::to_wire(created_at)),
        update_time: Some(time::to_wire(updated_at)),
        revision: revision.0,
    }
}

fn origin_to_wire(origin: DirectMessageOrigin, own: bool) -> v1::MessageOrigin {
    let DirectMessageOrigin { coordinator, context_uid, caller_id, message_id } = origin;
    v1::MessageOrigin {
        coordinator,
        context_uid: context_uid.to_string(),
        caller_id: caller_id.0,
        message_id: message_id.0,
        own,
    }
}
