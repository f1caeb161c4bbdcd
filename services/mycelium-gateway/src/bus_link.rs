//! Keeps a conversation over the bus alive. A bus does not notice that the peer is gone, or has
//! forgotten us; so the gateway asks a silent supervisor for its information, which introduces us again.

use std::time::Duration;

use backoff::ExponentialBackoff;
use model::supervision::{InfoRequest, method};
use model::{Presence, limits};
use mycelium::{BusDestination, BusPeers, CallError, JsonRpcCall, JsonRpcPeer, PayloadForm};
use tokio::time::Instant;

use crate::delivery::call_error_text;
use crate::peers::{OTHER_FORM, SupervisorConnectionSlot};
use crate::signing::announce_root_changes;
use crate::supervisor_api::GatewayState;

/// Silence after which a supervisor is asked for its information.
const SILENCE_MAX: Duration = Duration::from_secs(limits::PRESENCE_INTERVAL_SECS as u64 * 3 / 2);
/// How long a supervisor may take to send its information.
const INFO_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause before a supervisor is asked again.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Keeps one conversation for ever.
pub(crate) async fn keep(
    state: GatewayState,
    bus: BusPeers,
    to: BusDestination,
    address: String,
    slot: SupervisorConnectionSlot,
) {
    let mut backoff = ExponentialBackoff::up_to(RETRY_MAX);
    loop {
        let root = state.identity.now().root;
        match introduce(&state, &bus, to, &address).await {
            Ok((peer, form)) => {
                backoff.reset();
                slot.set_connected(peer);
                if state.peers.form(&address) != form {
                    // The records changed while this conversation was being set up, when there was none to end.
                    slot.set_disconnected(OTHER_FORM);
                    continue;
                }
                tokio::select! {
                    () = until_silent(&state, &address, Instant::now()) => {}
                    () = state.identity.other_than(root) => slot.set_disconnected("the coordinator has another root"),
                    () = slot.disconnected() => {}
                }
            }
            Err(error) => {
                // A complaint about another signer at the address explains more than the end of the conversation.
                let error = state.peers.complaint(&address).map_or(error, |known| known.to_string());
                tracing::debug!(address, error, "a supervisor does not answer on the bus");
                slot.set_disconnected(&error);
                state.peers.disconnect(&address, &error);
                state.peers.spellings(&address).iter().for_each(|spelling| state.presences.gone(spelling));
                // The node may sign with another key when it is back.
                if let Some(key) = state.peers.node_of(&address) {
                    bus.close(key);
                }
                backoff.pause().await;
            }
        }
    }
}

/// Begins a conversation; returns it with its payload form.
async fn introduce(
    state: &GatewayState,
    bus: &BusPeers,
    to: BusDestination,
    address: &str,
) -> Result<(JsonRpcPeer, PayloadForm), String> {
    let key = match to {
        BusDestination::Key(key) => key,
        BusDestination::Ip(ip) => match bus.bus().key_of(ip).await {
            Ok(key) => key,
            // A failed look-up does not matter while the node's key is known.
            Err(error) => state.peers.node_of(address).ok_or_else(|| error.to_string())?,
        },
    };
    state.peers.note_node(key, address);
    state.secret(address, None).map_err(|error| error.to_string())?;
    let form = state.peers.form(address);
    let peer = bus
        .peer_in(BusDestination::Key(key), &state.peers.topic(address), form)
        .await
        .map_err(|error| error.to_string())?;
    // This comes first: a supervisor that knows an earlier root rejects everything else.
    announce_root_changes(state, &peer, address).await?;
    request_info(state, &peer, address).await?;
    Ok((peer, form))
}

/// Asks a supervisor for its information, which introduces us: a supervisor serves coordinators that have signed to it.
pub(crate) async fn request_info(
    state: &GatewayState,
    peer: &JsonRpcPeer,
    address: &str,
) -> Result<(), String> {
    let call =
        JsonRpcCall::new(method::SUPERVISOR_INFO, &InfoRequest {}).map_err(|error| error.to_string())?;
    let request_time = Instant::now();
    let deadline = request_time + INFO_TIMEOUT;
    let sending = tokio::time::timeout_at(deadline, peer.send_batch_until(vec![call], Some(deadline)));
    let sent = sending.await.map_err(|_| call_error_text(&CallError::TimedOut))?;
    let passage = sent.progress();
    let answer = sent.outcomes(deadline).await.pop().unwrap_or(Err(CallError::Closed));
    let is_plain = state.peers.form(address) == PayloadForm::Plain;
    let presence = match answer {
        // The call carries the secret of some context, and the supervisor may accept only another's. Or it lacks the method.
        Err(CallError::Refused(refused)) if is_plain => {
            tracing::debug!(address, %refused, "a plain supervisor refuses to send its information");
            unnamed(state, address)
        }
        // A plain supervisor may be busy with its job and answer nothing else; its daemon took the call.
        Err(CallError::TimedOut) if is_plain && passage.is_sent() && state.sent.waits_for(address) => {
            unnamed(state, address)
        }
        answer => match serde_json::from_str(answer.map_err(|error| call_error_text(&error))?.get()) {
            Err(error) if is_plain => {
                tracing::debug!(address, %error, "a plain supervisor sends information of another form");
                unnamed(state, address)
            }
            presence => presence.map_err(|error| error.to_string())?,
        },
    };
    // A supervisor also reports each change at once: a presence that came after the question is no older than the answer.
    if state.presences.has_spoken_since(address, request_time) {
        return Ok(());
    }
    state.note_presence(address, presence).map_err(|error| error.to_string())
}

/// Makes the presence of a plain supervisor that reports none: alive, with the instances that its records name.
fn unnamed(state: &GatewayState, address: &str) -> Presence {
    Presence {
        supervisor: state.peers.node_of(address).map_or_else(|| address.to_owned(), |node| node.to_string()),
        version: String::new(),
        instances: state.peers.offered(address),
        queued: 0,
        draining: false,
    }
}

/// Waits until a supervisor has been silent for too long since the introduction.
async fn until_silent(state: &GatewayState, address: &str, introduced: Instant) {
    loop {
        let deadline =
            state.presences.last(address).map_or(introduced, |last| last.max(introduced)) + SILENCE_MAX;
        if deadline <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(deadline).await;
    }
}
