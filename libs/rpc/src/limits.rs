//! Limits of a server, in one place for `/info`.

use crate::gate::actor_limits::{ACTOR_QUICK_MAX, ACTOR_STREAMS_MAX, ACTOR_WAITING_MAX};
use crate::gate::budget::{ANSWERED_BYTES_MAX, HANDLED_BYTES_MAX, RECEIVED_BYTES_MAX};
use crate::gate::load_shedder::{CONNECTION_PROBES_MAX, QUICK_MAX, STRANGERS_MAX, STREAMS_MAX, WAITING_MAX};
use crate::gate::methods::CALL_SECS_MAX;
use crate::gate::request_headers::{HEADER_LIST_BYTES_MAX, REQUEST_ID_BYTES_MAX};
use crate::server::accept::{
    CONNECTIONS_ANONYMOUS_MAX, CONNECTIONS_LEAVING_MAX, CONNECTIONS_MAX, HANDSHAKES_MAX,
};
use crate::server::actor_connections::CONNECTIONS_OF_ACTOR_MAX;
use crate::server::connection_state::IDENTITY_TIMEOUT;
use crate::server::connection_table::{
    CONNECTIONS_ANONYMOUS_LOCAL_MAX, CONNECTIONS_ANONYMOUS_OF_ONE_MAX, HANDSHAKES_LOCAL_MAX,
    HANDSHAKES_OF_ONE_MAX,
};
use crate::server::{CONNECTION_STREAMS_MAX, CONNECTION_WINDOW_BYTES};

/// Bytes that tonic decodes of one message, unless a service says otherwise.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The named limits of every server, the unit in the name.
pub const LIMITS: [(&str, u64); 27] = [
    ("rpc_message_bytes_max", MESSAGE_BYTES_MAX as u64),
    ("rpc_received_bytes_max", RECEIVED_BYTES_MAX as u64),
    ("rpc_handled_bytes_max", HANDLED_BYTES_MAX as u64),
    ("rpc_answered_bytes_max", ANSWERED_BYTES_MAX as u64),
    ("rpc_header_list_bytes_max", HEADER_LIST_BYTES_MAX as u64),
    ("rpc_request_id_bytes_max", REQUEST_ID_BYTES_MAX as u64),
    ("rpc_call_secs_max", CALL_SECS_MAX),
    ("rpc_calls_in_flight_max", QUICK_MAX as u64),
    ("rpc_waiting_calls_in_flight_max", WAITING_MAX as u64),
    ("rpc_streams_in_flight_max", STREAMS_MAX as u64),
    ("rpc_strangers_calls_in_flight_max", STRANGERS_MAX as u64),
    ("rpc_actor_calls_in_flight_max", ACTOR_QUICK_MAX as u64),
    ("rpc_actor_waiting_calls_in_flight_max", ACTOR_WAITING_MAX as u64),
    ("rpc_actor_streams_in_flight_max", ACTOR_STREAMS_MAX as u64),
    ("rpc_connection_probes_max", CONNECTION_PROBES_MAX as u64),
    ("rpc_connections_max", CONNECTIONS_MAX as u64),
    ("rpc_connections_anonymous_max", CONNECTIONS_ANONYMOUS_MAX as u64),
    ("rpc_connections_anonymous_of_one_max", CONNECTIONS_ANONYMOUS_OF_ONE_MAX as u64),
    ("rpc_connections_anonymous_local_max", CONNECTIONS_ANONYMOUS_LOCAL_MAX as u64),
    ("rpc_connections_of_actor_max", CONNECTIONS_OF_ACTOR_MAX as u64),
    ("rpc_connections_leaving_max", CONNECTIONS_LEAVING_MAX as u64),
    ("rpc_identity_secs_max", IDENTITY_TIMEOUT.as_secs()),
    ("rpc_connection_streams_max", CONNECTION_STREAMS_MAX as u64),
    ("rpc_connection_window_bytes", CONNECTION_WINDOW_BYTES as u64),
    ("rpc_handshakes_max", HANDSHAKES_MAX as u64),
    ("rpc_handshakes_of_one_max", HANDSHAKES_OF_ONE_MAX as u64),
    ("rpc_handshakes_local_max", HANDSHAKES_LOCAL_MAX as u64),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_as_written() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../specs/serving.md");
        let page = std::fs::read_to_string(page).expect("the page");
        for (name, value) in LIMITS {
            assert!(page.contains(&format!("`{name}`")), "{name} = {value} is not in specs/serving.md");
        }
        assert_eq!(page.matches("`rpc_").count(), LIMITS.len());
    }
}
