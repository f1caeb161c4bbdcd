//! Requests that come again, where what they are checked against has changed since.

use model::ActorId;
use proto::internal::v1::FindRequestRequest;
use tonic::Status;

use crate::clients::FlowStoreClient;

/// Whether the request of this id and hash was carried out before; one without an id never was.
///
/// # Errors
/// ALREADY_EXISTS when it had another body then, else what storage answers.
pub async fn was_done(
    store: &mut FlowStoreClient,
    actor: ActorId,
    context_id: u32,
    (request_id, request_hash): (&str, String),
) -> Result<bool, Status> {
    if request_id.is_empty() {
        return Ok(false);
    }
    let request = FindRequestRequest {
        request_id: request_id.to_owned(),
        request_hash,
        context_id,
        on_behalf_of: actor.0,
    };
    Ok(store.find_request(request).await?.into_inner().found)
}
