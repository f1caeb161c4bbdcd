//! The gateway and single runners, as people read them.

use std::fmt::Write as _;

use model::Timestamp;
use proto::convert::time as wire_time;
use proto::v1;

use super::{labels, summary, table, time};

/// The gateway, and its peers.
#[must_use]
pub fn gateway(gateway: &v1::GetGatewayResponse) -> String {
    let v1::GetGatewayResponse {
        coordinator,
        bus,
        address,
        peers,
        bus_up,
        bus_problem,
        bus_version,
        signing_key,
        peer_count,
    } = gateway;
    let bus = match (bus.as_str(), bus_up) {
        ("", _) => "none: `mycelium:` addresses cannot be reached".to_owned(),
        (bus, true) => format!("{bus} {bus_version}").trim_end().to_owned(),
        (bus, false) => format!("{bus}, down"),
    };
    let mut pairs = vec![("coordinator", coordinator.clone()), ("bus", bus)];
    let given = [("address", address), ("problem", bus_problem), ("signs with", signing_key)];
    pairs.extend(
        given
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| (name, table::shown_whole(text))),
    );
    let mut text = table::pairs(&pairs);
    if !peers.is_empty() {
        let rows: Vec<_> = peers
            .iter()
            .map(|peer| {
                vec![
                    peer.address.clone(),
                    if peer.connected { "yes" } else { "no" }.to_owned(),
                    or_dash(&peer.supervisor),
                    or_dash(&peer.last_error),
                ]
            })
            .collect();
        text.push('\n');
        text.push_str(&table::render_whole(&["SUPERVISOR AT", "CONNECTED", "NAME", "PROBLEM"], &rows));
        let more = (*peer_count as usize).saturating_sub(peers.len());
        if more > 0 {
            let _ = writeln!(text, "… and {more} more");
        }
    }
    text
}

/// Reports that a peer answered, and after which time.
#[must_use]
pub fn pong(address: &str, answer: &v1::PingPeerResponse) -> String {
    let took = answer.round_trip.and_then(|length| length.try_into().ok()).unwrap_or_default();
    let node = if answer.node.is_empty() { String::new() } else { format!(", node {}", answer.node) };
    format!("{address} answered after {}{node}\n", time::duration(took))
}

/// A runner, and the instances behind it.
#[must_use]
pub fn runner(runner: &v1::Runner, now: Timestamp) -> String {
    let list = |texts: Vec<String>, none: &str| {
        if texts.is_empty() { none.to_owned() } else { texts.join(", ") }
    };
    let types = runner.script_types().map(|kind| labels::script_type(kind).to_owned()).collect();
    let labels = runner.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let envelope = match (runner.envelope(), runner.secret_ref.as_str()) {
        (v1::EnvelopeForm::Plain, "") => "plain".to_owned(),
        (v1::EnvelopeForm::Plain, secret) => format!("plain, with the secret `{secret}`"),
        _ => "signed".to_owned(),
    };
    let group = if runner.group.is_empty() { "the types' shared queues" } else { &runner.group };
    let mut pairs = vec![
        ("runner", runner.id.to_string()),
        ("address", runner.address.clone()),
        ("topic", runner.topic.clone()),
        ("supervisor", or_dash(&runner.supervisor)),
        ("live", summary::live(runner).to_owned()),
        ("heard", time::ago(now, runner.last_seen_time.map(wire_time::from_wire))),
        ("queued", runner.queued.to_string()),
        ("takes", list(types, "what its instances offer")),
        ("group", group.to_owned()),
        ("labels", list(labels, "-")),
        ("requests", envelope),
    ];
    if runner.envelope() != v1::EnvelopeForm::Plain {
        let key = Some(runner.signing_key.clone()).filter(|key| !key.is_empty());
        pairs.push(("signs with", key.unwrap_or_else(|| "the first key that it presents".to_owned())));
    }
    if runner.local {
        pairs.push(("place", "this machine".to_owned()));
    }
    if let Some(time) = runner.drain_time {
        pairs.push(("drained", format!("since {}", time::utc(wire_time::from_wire(time)))));
    }
    pairs.push(("registered", time::utc(wire_time::required(runner.create_time))));
    let mut text = table::pairs(&pairs);
    if !runner.instances.is_empty() {
        text.push('\n');
        text.push_str(&summary::instances(&runner.instances));
    }
    text
}

/// A runner in one line, as it is when it changes.
#[must_use]
pub fn runner_line(runner: &v1::Runner, now: Timestamp) -> String {
    let v1::Runner { id, address, queued, instances, drain_time, draining, .. } = runner;
    let state = match (runner.live, runner.last_seen_time.map(wire_time::from_wire)) {
        (true, _) => "lives".to_owned(),
        (false, None) => "was never heard from".to_owned(),
        (false, seen) => format!("is dead, last heard from {}", time::ago(now, seen)),
    };
    let count = labels::count(instances.len(), "instance", "instances");
    let drained = match (drain_time.is_some(), draining) {
        (true, _) => ", is sent no new jobs",
        (false, true) => ", its machine is drained",
        (false, false) => "",
    };
    format!("runner {id} at {address} {state}{drained}: {count}, {queued} queued\n")
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_fields_of_a_gateway_and_a_runner_are_described() {
        let text = gateway(&v1::GetGatewayResponse { coordinator: "cd".into(), ..Default::default() });
        assert!(text.contains("bus          none: "), "{text}");
        let peers = vec![v1::Peer { address: "grpc://h:1".into(), ..Default::default() }];
        let text = gateway(&v1::GetGatewayResponse { peers, peer_count: 3, ..Default::default() });
        assert!(text.ends_with("\n… and 2 more\n"), "{text}");

        let text = runner(&v1::Runner { id: 3, ..Default::default() }, Timestamp::from_millis(0));
        assert!(text.contains("takes       what its instances offer\n"), "{text}");
        assert!(text.contains("signs with  the first key that it presents\n"), "{text}");
    }

    #[test]
    fn a_ping_shows_its_round_trip_time_and_the_node() {
        let round_trip = prost_types::Duration { seconds: 0, nanos: 12_400_000 };
        let answer = v1::PingPeerResponse { round_trip: Some(round_trip), node: "ab".into() };
        assert_eq!(pong("grpc://h:1", &answer), "grpc://h:1 answered after 12 ms, node ab\n");
    }

    #[test]
    fn a_plain_runner_names_its_secret() {
        let mut plain = v1::Runner { secret_ref: "hero".into(), ..Default::default() };
        plain.set_envelope(v1::EnvelopeForm::Plain);
        let text = runner(&plain, Timestamp::from_millis(0));
        assert!(text.contains("requests    plain, with the secret `hero`\n"), "{text}");
        assert!(!text.contains("signs with"), "{text}");
    }
}
