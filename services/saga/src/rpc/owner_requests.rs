//! Requests to owners of lanes: about lanes, dead letters and calls.

use ::rpc::{Error, ErrorKind, RpcReason};
use model::{ActorId, BlobHash, TenantId, Violations};
use serde::Serialize;
use tonic::Status;
use workflow::input::INPUT_BYTES_MAX;
use workflow::lane_request::LaneRequestMessage;
use workflow::message::{self, ReplyAddress};
use workflow::step::RequestRefusal;
use workflow::{InputId, MessageSubject, WorkflowLane};

use super::SagaApi;
use super::access::SagaIdempotencyKey;
use super::owner_client::LaneOwnerRequest;
use crate::lane::answers::{LaneRequestAnswer, LaneRequestOutcome};

/// Request of an actor to the owner of a lane.
pub(super) struct OperatorRequest {
    pub(super) actor: ActorId,
    pub(super) tenant: TenantId,
    /// The id of the request.
    pub(super) request: String,
    hash: String,
}

impl OperatorRequest {
    /// Makes a request. Without an id, repeats of it are not recognised.
    pub(super) fn new(
        actor: ActorId,
        tenant: &TenantId,
        request: Option<&SagaIdempotencyKey>,
        hash: BlobHash,
    ) -> Self {
        let id = request.map(|request| request.id.to_string());
        let request = id.unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
        let hash = BlobHash::of(&[&actor.0.to_be_bytes()[..], hash.as_bytes()].concat()).to_string();
        Self { actor, tenant: tenant.clone(), request, hash }
    }

    /// Returns true if an answer belongs to this request.
    pub(super) fn is_answer(&self, answer: &LaneRequestAnswer) -> bool {
        answer.request_hash == self.hash
    }
}

impl SagaApi {
    /// Sends a request to the owner of a lane and waits for the answer. `part` distinguishes the messages of one request.
    ///
    /// # Errors
    /// FAILED_PRECONDITION while the tenant is paused, INVALID_ARGUMENT when the request is too large, and as
    /// [`super::owner_client::LaneOwnerClient::ask`].
    pub(super) async fn send_request<W: Serialize + Clone + Send + Sync>(
        &self,
        operator_request: &OperatorRequest,
        part: &str,
        to: (&WorkflowLane, MessageSubject),
        lane_request: W,
    ) -> Result<LaneRequestAnswer, Status> {
        let (lane, subject) = to;
        let OperatorRequest { actor, tenant, request, hash } = operator_request;
        self.check_running(tenant)?;
        let request = format!("{request}{part}");
        let body = |reply_to: Option<ReplyAddress>| {
            message::write(&LaneRequestMessage {
                tenant_id: tenant.to_string(),
                request_id: request.clone(),
                lane: lane.to_string(),
                word: lane_request.clone(),
                request_hash: hash.clone(),
                reply_to,
            })
        };
        let size = body(None).len();
        // The address for the answer is added to it.
        if size + 1024 > INPUT_BYTES_MAX {
            let mut violations = Violations::new();
            violations.add("", format!("the request has {size} bytes as a message, which is too much"));
            return Err(Error::from(violations).into());
        }
        let id = InputId::Event(format!("word\n{lane}\n{}\n{request}", actor.0));
        let question = LaneOwnerRequest {
            subject: subject.of(tenant),
            message_id: hex::encode(id.digest()),
            body: &|to| body(Some(to)),
            stored: Some((lane, LaneRequestAnswer::key(&request))),
        };
        let answer =
            self.asker.ask(&question, |answer: &LaneRequestAnswer| answer.request_hash == *hash).await?;
        match &answer.outcome {
            LaneRequestOutcome::Refused(refusal) => Err(refused(refusal)),
            _ => Ok(answer),
        }
    }
}

/// The status of a refusal.
pub(super) fn refused(refusal: &RequestRefusal) -> Status {
    let RequestRefusal { reason, message } = refusal;
    let (kind, reason) = match reason.as_str() {
        "EFFECT_NOT_FOUND" => return Error::not_found("the call").into(),
        "LETTER_NOT_FOUND" => return Error::not_found("the dead letter").into(),
        "SAGA_NOT_FOUND" => return Error::not_found("the saga").into(),
        "LETTER_HAS_NO_DATA" => {
            let mut violations = Violations::new();
            violations.add("data_json", message.as_str());
            return Error::from(violations).into();
        }
        "REQUEST_ID_REUSED" => (ErrorKind::AlreadyExists, RpcReason::RequestIdReused),
        "TOKEN_REFUSED" => (ErrorKind::PermissionDenied, RpcReason::TokenRefused),
        "LIMIT_EXCEEDED" => (ErrorKind::ResourceExhausted, RpcReason::LimitExceeded),
        text => {
            let known = RpcReason::ALL.iter().find(|reason| reason.as_str() == text);
            match known.filter(|reason| *reason.codes() == [tonic::Code::FailedPrecondition]) {
                Some(reason) => (ErrorKind::FailedPrecondition, *reason),
                None => return Error::internal(format!("no such reason of a refusal: {refusal:?}")).into(),
            }
        }
    };
    Error::new(kind, reason, message.clone()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_a_status() {
        for (reason, code) in [
            ("EFFECT_NOT_FOUND", tonic::Code::NotFound),
            ("LETTER_NOT_FOUND", tonic::Code::NotFound),
            ("LETTER_HAS_NO_DATA", tonic::Code::InvalidArgument),
            ("REQUEST_ID_REUSED", tonic::Code::AlreadyExists),
            ("TOKEN_REFUSED", tonic::Code::PermissionDenied),
            ("LIMIT_EXCEEDED", tonic::Code::ResourceExhausted),
            ("EFFECT_NOT_UNKNOWN", tonic::Code::FailedPrecondition),
            ("EFFECT_NOT_OPEN", tonic::Code::FailedPrecondition),
            ("EFFECT_NOT_WAITING", tonic::Code::FailedPrecondition),
            ("SAGA_PARKED", tonic::Code::FailedPrecondition),
        ] {
            let refusal = RequestRefusal { reason: reason.to_owned(), message: "why".to_owned() };
            assert_eq!(refused(&refusal).code(), code, "{reason}");
        }
    }
}
