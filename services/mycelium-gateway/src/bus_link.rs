//! Keeps a conversation over the bus alive. A bus does not notice that the other side is gone, or
//! has forgotten us; so a silent supervisor is asked for its information, which introduces us again.

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

/// A supervisor that was not heard for this long is asked who it is.
const SILENCE_MAX: Duration = Duration::from_secs(limits::PRESENCE_INTERVAL_SECS as u64 * 3 / 2);
/// How long it may take to answer that.
const INFO_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest pause before it is asked again.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Keeps one conversation for ever.
pub(crate) async fn keep(
    desk: GatewayState,
    bus: BusPeers,
    to: BusDestination,
    address: String,
    seat: SupervisorConnectionSlot,
) {
    let mut backoff = ExponentialBackoff::up_to(RETRY_MAX);
    loop {
        let root = desk.identity.now().root;
        match introduce(&desk, &bus, to, &address).await {
            Ok((peer, form)) => {
                backoff.reset();
                seat.set_connected(peer);
                if desk.peers.form(&address) != form {
                    // Records that came meanwhile found nothing that they could end.
                    seat.set_disconnected(OTHER_FORM);
                    continue;
                }
                tokio::select! {
                    () = until_silent(&desk, &address, Instant::now()) => {}
                    () = desk.identity.other_than(root) => seat.set_disconnected("the coordinator has another root"),
                    () = seat.disconnected() => {}
                }
            }
            Err(error) => {
                // What is known of somebody else there says more than that the conversation ended.
                let error = desk.peers.complaint(&address).map_or(error, |known| known.to_string());
                tracing::debug!(address, error, "a supervisor does not answer on the bus");
                seat.set_disconnected(&error);
                desk.peers.disconnect(&address, &error);
                desk.peers.spellings(&address).iter().for_each(|spelling| desk.presences.gone(spelling));
                // Whoever is there now may sign with another key.
                if let Some(key) = desk.peers.node_of(&address) {
                    bus.close(key);
                }
                backoff.pause().await;
            }
        }
    }
}

/// Begins a conversation; gives it with the form in which it is.
async fn introduce(
    desk: &GatewayState,
    bus: &BusPeers,
    to: BusDestination,
    address: &str,
) -> Result<(JsonRpcPeer, PayloadForm), String> {
    let key = match to {
        BusDestination::Key(key) => key,
        BusDestination::Ip(ip) => match bus.bus().key_of(ip).await {
            Ok(key) => key,
            // A look-up that fails ends nothing for those who know the node by its key.
            Err(error) => desk.peers.node_of(address).ok_or_else(|| error.to_string())?,
        },
    };
    desk.peers.note_node(key, address);
    desk.secret(address, None).map_err(|error| error.to_string())?;
    let form = desk.peers.form(address);
    let peer = bus
        .peer_in(BusDestination::Key(key), &desk.peers.topic(address), form)
        .await
        .map_err(|error| error.to_string())?;
    // First: whoever listens to an earlier root listens to nothing else.
    announce_root_changes(desk, &peer, address).await?;
    request_info(desk, &peer, address).await?;
    Ok((peer, form))
}

/// Asks a supervisor for its information, which introduces us: it listens to coordinators that signed to it.
pub(crate) async fn request_info(
    desk: &GatewayState,
    peer: &JsonRpcPeer,
    address: &str,
) -> Result<(), String> {
    let call =
        JsonRpcCall::new(method::SUPERVISOR_INFO, &InfoRequest {}).map_err(|error| error.to_string())?;
    let asked = Instant::now();
    let deadline = asked + INFO_TIMEOUT;
    let sending = tokio::time::timeout_at(deadline, peer.send_batch_until(vec![call], Some(deadline)));
    let sent = sending.await.map_err(|_| call_error_text(&CallError::TimedOut))?;
    let passage = sent.progress();
    let answer = sent.outcomes(deadline).await.pop().unwrap_or(Err(CallError::Closed));
    let is_plain = desk.peers.form(address) == PayloadForm::Plain;
    let presence = match answer {
        // This goes with the secret of whichever context. Those of others may be taken. Or it knows no such method.
        Err(CallError::Refused(refused)) if is_plain => {
            tracing::debug!(address, %refused, "a plain supervisor does not say who it is");
            unnamed(desk, address)
        }
        // It may do nothing else while a job runs; its daemon is there.
        Err(CallError::TimedOut) if is_plain && passage.is_sent() && desk.sent.waits_for(address) => {
            unnamed(desk, address)
        }
        answer => match serde_json::from_str(answer.map_err(|error| call_error_text(&error))?.get()) {
            Err(error) if is_plain => {
                tracing::debug!(address, %error, "a plain supervisor says something else of itself");
                unnamed(desk, address)
            }
            presence => presence.map_err(|error| error.to_string())?,
        },
    };
    // It tells of every change at once, beside its answers: what came since it was asked is no older than its answer.
    if desk.presences.has_spoken_since(address, asked) {
        return Ok(());
    }
    desk.note_presence(address, presence).map_err(|error| error.to_string())
}

/// Makes the presence of a plain supervisor that reports none: it answers, and does what its records say.
fn unnamed(desk: &GatewayState, address: &str) -> Presence {
    Presence {
        supervisor: desk.peers.node_of(address).map_or_else(|| address.to_owned(), |node| node.to_string()),
        version: String::new(),
        instances: desk.peers.offered(address),
        queued: 0,
        draining: false,
    }
}

/// Waits until nothing has come for too long since it was introduced.
async fn until_silent(desk: &GatewayState, address: &str, introduced: Instant) {
    loop {
        let deadline =
            desk.presences.last(address).map_or(introduced, |last| last.max(introduced)) + SILENCE_MAX;
        if deadline <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(deadline).await;
    }
}
