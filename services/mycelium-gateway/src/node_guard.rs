//! Checks payloads from supervisors on the bus: signed with the key of their records; or plain, where the records say so.

use std::sync::Arc;

use bytes::Bytes;
use envelope::Conversation;
use model::ContextId;
use mycelium::{Guard, JsonRpcError, PayloadForm, PeerEndpoint, PublicKey, RejectedPayload};

use crate::peers::PINNED_KEY;
use crate::secrets;
use crate::supervisor_api::{GatewayState, SupervisorRef};

/// Makes our endpoint of a conversation with a node, which may be part of this process.
pub(crate) fn peer_endpoint(state: &GatewayState, node: PublicKey, is_one_program: bool) -> PeerEndpoint {
    let conversation = state.conversation(node.to_string());
    let conversation = if is_one_program { conversation.in_process() } else { conversation };
    let guard = SupervisorNodeGuard { state: state.clone(), node, conversation };
    PeerEndpoint { handler: state.supervisor_handler(SupervisorRef::Node(node)), guard: Arc::new(guard) }
}

/// Guard of the payloads of one node. Its records may change while the conversation goes on.
struct SupervisorNodeGuard {
    state: GatewayState,
    node: PublicKey,
    conversation: Conversation,
}

impl SupervisorNodeGuard {
    /// Returns the node's address if its records ask for plain JSON-RPC.
    fn plain(&self) -> Option<String> {
        let address = self.state.peers.address_of(self.node)?;
        (self.state.peers.form(&address) == PayloadForm::Plain).then_some(address)
    }
}

impl Guard for SupervisorNodeGuard {
    fn seal(&self, payload: Bytes) -> Result<Bytes, String> {
        self.seal_of(payload, None)
    }

    fn seal_of(&self, payload: Bytes, of: Option<u32>) -> Result<Bytes, String> {
        let Some(address) = self.plain() else { return Guard::seal(&self.conversation, payload) };
        // The context that the caller gave takes precedence over the one that the payload names.
        let secret = |named| self.state.secret(&address, of.map(ContextId).or(named));
        secrets::insert_secret(&payload, secret).map_err(|error| service::error_chain(&error))
    }

    fn open(&self, payload: &Bytes) -> Result<Bytes, RejectedPayload> {
        if self.plain().is_some() {
            // Plain payloads are unsigned: only the transport vouches for the node they came from.
            return Ok(payload.clone());
        }
        let opened = Guard::open(&self.conversation, payload)?;
        let speaker = self.state.peers.address_of(self.node).zip(self.conversation.root());
        let admitted = speaker.map_or(Ok(()), |(address, key)| self.state.peers.admit(&address, key));
        admitted.map(|()| opened).map_err(|error| {
            // The supervisor that the records mean may connect later, in a conversation of its own.
            let error = JsonRpcError::refused(PINNED_KEY, false, error.to_string());
            RejectedPayload { error, body: None, over: true }
        })
    }
}
