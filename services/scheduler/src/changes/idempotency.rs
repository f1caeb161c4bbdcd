//! Repeated requests, where the state they are checked against has changed since the first one.

use model::{ActorId, BlobHash, RequestId, Violations};
use prost::Message;
use proto::internal::v1::{FindRequestRequest, FindRequestResponse, FlowPurpose, ReadFlowRequest};
use proto::v1::Flow;
use tonic::Status;

use crate::clients::FlowStoreClient;

/// Idempotency key of a request, and the hash of its body.
#[derive(Debug, Clone)]
pub(crate) struct RequestFingerprint {
    /// Idempotency key; empty: the request is not repeatable.
    pub(crate) id: String,
    pub(crate) hash: String,
}

impl RequestFingerprint {
    /// Notes what is wrong with the id.
    pub(crate) fn parse(id: &str, hash: String, violations: &mut Violations) -> Self {
        let id = RequestId::parse(id, violations).map(|id| id.to_string());
        Self { id: id.unwrap_or_default(), hash }
    }

    /// Returns true when the request was carried out before; without an id it never was.
    ///
    /// # Errors
    /// ALREADY_EXISTS when it had another body then, else what storage answers.
    pub(crate) async fn was_done(
        &self,
        store: &mut FlowStoreClient,
        actor: ActorId,
        context_id: u32,
    ) -> Result<bool, Status> {
        Ok(self.find(store, actor, context_id).await?.is_some())
    }

    /// Finds the stored response to the request; nothing unless the request was carried out before.
    ///
    /// # Errors
    /// As [`RequestFingerprint::was_done`].
    pub(crate) async fn find(
        &self,
        store: &mut FlowStoreClient,
        actor: ActorId,
        context_id: u32,
    ) -> Result<Option<FindRequestResponse>, Status> {
        if self.id.is_empty() {
            return Ok(None);
        }
        let request = FindRequestRequest {
            request_id: self.id.clone(),
            request_hash: self.hash.clone(),
            context_id,
            on_behalf_of: actor.0,
        };
        let answer = store.find_request(request).await?.into_inner();
        Ok(answer.found.then_some(answer))
    }
}

/// Hashes a request together with its type: requests to cancel a flow and to run it again may have the same
/// fields. The caller leaves out the request id.
pub(crate) fn hash_of<M: Message>(body: &M) -> String {
    let path = std::any::type_name::<M>();
    let kind = path.rsplit_once("::").map_or(path, |(_, name)| name);
    let mut hashed = Vec::with_capacity(kind.len() + body.encoded_len());
    hashed.extend(kind.as_bytes());
    body.encode_raw(&mut hashed);
    BlobHash::of(&hashed).to_string()
}

/// Hashes a request without some of its texts, which are taken out meanwhile and not copied.
pub(crate) fn hash_without<M: Message>(
    request: &mut M,
    texts: impl for<'a> Fn(&'a mut M) -> Vec<&'a mut String>,
) -> String {
    let taken: Vec<String> = texts(request).into_iter().map(std::mem::take).collect();
    let hash = hash_of(request);
    for (place, text) in texts(request).into_iter().zip(taken) {
        *place = text;
    }
    hash
}

/// The flow that such a request created or started, in its present state.
///
/// # Errors
/// NOT_FOUND when the flow is gone, also when another flow has its number; else what storage answers.
pub(crate) async fn flow_of(
    store: &mut FlowStoreClient,
    actor: ActorId,
    context_id: u32,
    answered: &FindRequestResponse,
) -> Result<Flow, Status> {
    let flow_id = answered.flow_id;
    let purpose = FlowPurpose::Unspecified.into();
    let read = ReadFlowRequest { context_id, flow_id, on_behalf_of: actor.0, purpose };
    let flow = store.read_flow(read).await?.into_inner().flow.and_then(|record| record.flow);
    let gone = || rpc::Error::not_found(format!("the flow of this request, flow {flow_id}"));
    Ok(flow.filter(|flow| flow.uid == answered.flow_uid).ok_or_else(gone)?)
}

#[cfg(test)]
mod tests {
    use proto::v1::{CancelFlowRequest, RetryFlowRequest};

    use super::*;

    #[test]
    fn what_does_not_count_is_there_again_afterwards() {
        let mut request = CancelFlowRequest { request_id: "a".into(), context_id: 1, ..Default::default() };
        let hash = hash_without(&mut request, |request| vec![&mut request.request_id]);
        assert_eq!(request.request_id, "a");
        assert_ne!(hash, hash_of(&request));
        request.request_id.clear();
        assert_eq!(hash, hash_of(&request));
    }

    #[test]
    fn requests_of_two_kinds_are_two() {
        let cancel = CancelFlowRequest { context_id: 1, flow_id: 2, ..Default::default() };
        let retry = RetryFlowRequest { context_id: 1, flow_id: 2, ..Default::default() };
        assert_eq!(cancel.encode_to_vec(), retry.encode_to_vec());
        assert_ne!(hash_of(&cancel), hash_of(&retry));
    }
}
