//! How the nodes of the bus that are supervisors are heard: signed, by whom their records mean; or plain, where they say so.

use std::sync::Arc;

use bytes::Bytes;
use envelope::Conversation;
use model::ContextId;
use mycelium::{Form, Guard, PublicKey, Refused, RpcError, Side};

use crate::front::{Desk, Who};
use crate::peers::PINNED_KEY;
use crate::secrets;

/// Our side of a conversation with a node, which may be a part of this very program.
pub(crate) fn side(desk: &Desk, node: PublicKey, is_one_program: bool) -> Side {
    let conversation = desk.conversation(node.to_string());
    let conversation = if is_one_program { conversation.within_one_program() } else { conversation };
    let guard = OnNode { desk: desk.clone(), node, conversation };
    Side { handler: desk.front(Who::Node(node)), guard: Arc::new(guard) }
}

/// What is done to payloads of a node. Its records may change while the conversation goes on.
struct OnNode {
    desk: Desk,
    node: PublicKey,
    conversation: Conversation,
}

impl OnNode {
    /// The address that leads to it, when it is to be spoken to in plain JSON-RPC.
    fn plain(&self) -> Option<String> {
        let address = self.desk.peers.address_of(self.node)?;
        (self.desk.peers.form(&address) == Form::Plain).then_some(address)
    }
}

impl Guard for OnNode {
    fn seal(&self, payload: Bytes) -> Result<Bytes, String> {
        self.seal_of(payload, None)
    }

    fn seal_of(&self, payload: Bytes, of: Option<u32>) -> Result<Bytes, String> {
        let Some(address) = self.plain() else { return Guard::seal(&self.conversation, payload) };
        // What a call is of is known here; what it says by itself is for those that nobody has told of.
        let secret = |named| self.desk.secret(&address, of.map(ContextId).or(named));
        secrets::accompany(&payload, secret).map_err(|error| service::error_chain(&error))
    }

    fn open(&self, payload: &Bytes) -> Result<Bytes, Refused> {
        if self.plain().is_some() {
            // That it came from this node is said by the transport, and nothing else is.
            return Ok(payload.clone());
        }
        let opened = Guard::open(&self.conversation, payload)?;
        let speaker = self.desk.peers.address_of(self.node).zip(self.conversation.root());
        let admitted = speaker.map_or(Ok(()), |(address, key)| self.desk.peers.admit(&address, key));
        admitted.map(|()| opened).map_err(|error| {
            // Whoever is meant may speak here later, in a conversation of its own.
            let error = RpcError::refused(PINNED_KEY, false, error.to_string());
            Refused { error, body: None, over: true }
        })
    }
}
