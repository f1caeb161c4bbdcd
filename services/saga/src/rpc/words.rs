//! Words to owners of lanes: what is asked of lanes, letters and calls.

use ::rpc::{Error, ErrorKind, Reason};
use model::{ActorId, BlobHash, TenantId, Violations};
use serde::Serialize;
use tonic::Status;
use workflow::input::INPUT_BYTES_MAX;
use workflow::message::{self, ReplyAddress};
use workflow::step::Refusal;
use workflow::word::WordMessage;
use workflow::{InputId, Lane, Subject};

use super::Api;
use super::access::Repeatable;
use super::ask::Question;
use crate::lane::answers::{WordAnswer, WordOutcome};

/// Who says a word, and with which request.
pub(super) struct Speaker {
    pub(super) actor: ActorId,
    pub(super) tenant: TenantId,
    /// The id of the request.
    pub(super) request: String,
    hash: String,
}

impl Speaker {
    /// Makes the speaker of a request. One without an id is not known again.
    pub(super) fn new(
        actor: ActorId,
        tenant: &TenantId,
        request: Option<&Repeatable>,
        hash: BlobHash,
    ) -> Self {
        let id = request.map(|request| request.id.to_string());
        let request = id.unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
        let hash = BlobHash::of(&[&actor.0.to_be_bytes()[..], hash.as_bytes()].concat()).to_string();
        Self { actor, tenant: tenant.clone(), request, hash }
    }

    /// Whether an answer is one to this request.
    pub(super) fn is_answer(&self, answer: &WordAnswer) -> bool {
        answer.request_hash == self.hash
    }
}

impl Api {
    /// Says a word to the owner of a lane and waits for the answer. `part` tells words of one request from each other.
    ///
    /// # Errors
    /// FAILED_PRECONDITION while the tenant is paused, INVALID_ARGUMENT when the word is too large, and as
    /// [`super::ask::Asker::ask`].
    pub(super) async fn say<W: Serialize + Clone + Send + Sync>(
        &self,
        speaker: &Speaker,
        part: &str,
        to: (&Lane, Subject),
        word: W,
    ) -> Result<WordAnswer, Status> {
        let (lane, subject) = to;
        let Speaker { actor, tenant, request, hash } = speaker;
        self.check_running(tenant)?;
        let request = format!("{request}{part}");
        let body = |reply_to: Option<ReplyAddress>| {
            message::write(&WordMessage {
                tenant_id: tenant.to_string(),
                request_id: request.clone(),
                lane: lane.to_string(),
                word: word.clone(),
                request_hash: hash.clone(),
                reply_to,
            })
        };
        let size = body(None).len();
        // The address of the answer comes with it.
        if size + 1024 > INPUT_BYTES_MAX {
            let mut violations = Violations::new();
            violations.add("", format!("the request has {size} bytes as a message, which is too much"));
            return Err(Error::from(violations).into());
        }
        let id = InputId::Event(format!("word\n{lane}\n{}\n{request}", actor.0));
        let question = Question {
            subject: subject.of(tenant),
            message_id: hex::encode(id.digest()),
            body: &|to| body(Some(to)),
            stored: Some((lane, WordAnswer::key(&request))),
        };
        let answer = self.asker.ask(&question, |answer: &WordAnswer| answer.request_hash == *hash).await?;
        match &answer.outcome {
            WordOutcome::Refused(refusal) => Err(refused(refusal)),
            _ => Ok(answer),
        }
    }
}

/// The status of a refusal.
pub(super) fn refused(refusal: &Refusal) -> Status {
    let Refusal { reason, message } = refusal;
    let (kind, reason) = match reason.as_str() {
        "EFFECT_NOT_FOUND" => return Error::not_found("the call").into(),
        "LETTER_NOT_FOUND" => return Error::not_found("the dead letter").into(),
        "SAGA_NOT_FOUND" => return Error::not_found("the saga").into(),
        "LETTER_HAS_NO_DATA" => {
            let mut violations = Violations::new();
            violations.add("data_json", message.as_str());
            return Error::from(violations).into();
        }
        "REQUEST_ID_REUSED" => (ErrorKind::AlreadyExists, Reason::RequestIdReused),
        "TOKEN_REFUSED" => (ErrorKind::PermissionDenied, Reason::TokenRefused),
        "LIMIT_EXCEEDED" => (ErrorKind::ResourceExhausted, Reason::LimitExceeded),
        text => {
            let known = Reason::ALL.iter().find(|reason| reason.as_str() == text);
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
            let refusal = Refusal { reason: reason.to_owned(), message: "why".to_owned() };
            assert_eq!(refused(&refusal).code(), code, "{reason}");
        }
    }
}
