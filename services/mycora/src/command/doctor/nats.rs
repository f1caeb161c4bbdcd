//! The broker of sagas: its version and limits, the streams and the consumers on it.

use std::time::Duration;

use broker::{
    BrokerDescription, BrokerError, BrokerVersion, ConsumerListing, CursorSpec, CursorStart,
    HEADER_BYTES_MAX, JetStream, MessageBroker as _, SettingDifference, StreamSpec, StreamState,
};
use clap::Args;
use model::{SagaName, TenantId};
use saga::lane::{AGGREGATE_EVENTS, MESSAGE_BYTES_MAX, WORKFLOW_COMMANDS, WORKFLOW_EVENTS, streams};
use saga::nats_login::NatsLogin;
use workflow::WorkflowLane;
use workflow::subject::ConsumerSource;

use super::finding::Finding;
use crate::output::labels;

const CHECK: &str = "nats";
/// A server that is there answers at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// Servers since this may acknowledge what is not on the disk yet.
const SYNCS_LATER: BrokerVersion = BrokerVersion { major: 2, minor: 10, patch: 0 };
/// Default limit of a newer server on the consumers of a stream.
const CONSUMERS_DEFAULT: i64 = 1000;
/// Most differences of consumers that are shown one by one.
const SHOWN_MAX: usize = 20;

/// Address of the broker, as configured for the saga service.
#[derive(Debug, Args)]
pub struct NatsArgs {
    /// Check this NATS server of sagas as well: its version, limits, streams and consumers
    #[arg(long, value_name = "URL", env = "MYCORA_NATS_URL", hide_env_values = true)]
    pub nats_url: Option<String>,
    /// How to authenticate to that server
    #[command(flatten)]
    pub nats_login: NatsLogin,
}

/// Everything about the broker; nothing where none is named.
pub(super) async fn look(args: &NatsArgs) -> Vec<Finding> {
    let Some(url) = &args.nats_url else { return Vec::new() };
    let options = match args.nats_login.options(url, "mycora doctor") {
        Ok(options) => options,
        Err(found) => {
            return vec![Finding::fail(CHECK, found, "name the file that the saga service is given")];
        }
    };
    let jetstream = match JetStream::start(options) {
        Ok(jetstream) => jetstream,
        Err(error) => {
            return vec![Finding::fail(CHECK, error.to_string(), "write it as nats://host:4222")];
        }
    };
    let server = match jetstream.connected(PATIENCE).await.and_then(|()| jetstream.server()) {
        Ok(server) => server,
        Err(error) => {
            let advice = "is it running, and are --nats-url, --nats-user and its password right?";
            return vec![Finding::fail(CHECK, error.to_string(), advice)];
        }
    };
    let mut findings = vec![version(&server), payload(&server)];
    findings.extend(durability(&server));
    findings.extend(all_streams(&jetstream).await);
    findings
}

fn version(server: &BrokerDescription) -> Finding {
    let found = format!("nats-server {}", server.version_text);
    match server.version {
        Some(version) if version >= BrokerVersion::OLDEST => Finding::ok(CHECK, found),
        Some(_) => Finding::fail(CHECK, format!("{found} is too old"), "install nats-server 2.9.10 or later"),
        None => Finding::warn(CHECK, found, "2.9.10 or later is needed; its version cannot be read"),
    }
}

fn payload(server: &BrokerDescription) -> Finding {
    let check = format!("{CHECK} max_payload");
    let (found, wanted) = (server.max_payload, MESSAGE_BYTES_MAX);
    if found >= wanted {
        return Finding::ok(check, format!("{found} bytes"));
    }
    let least = found.saturating_sub(HEADER_BYTES_MAX);
    Finding::warn(
        check,
        format!("{found} bytes: events, commands and results have at most {least}"),
        format!("set `max_payload: {wanted}` or more"),
    )
}

/// Points out a setting that clients cannot see; returns nothing for servers without it.
fn durability(server: &BrokerDescription) -> Option<Finding> {
    server.version.filter(|version| *version >= SYNCS_LATER)?;
    let found = "not visible to clients: by default a loss of power costs what was acknowledged in the last 2 minutes";
    let advice = "see that its configuration has `jetstream { sync_interval: always }`".to_owned();
    Some(Finding { advice, ..Finding::ok(format!("{CHECK} sync_interval"), found) })
}

async fn all_streams(jetstream: &JetStream) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in [WORKFLOW_COMMANDS, WORKFLOW_EVENTS, AGGREGATE_EVENTS] {
        let check = format!("stream {name}");
        match jetstream.stream(name).await {
            Ok(Some(state)) => {
                findings.push(match name {
                    AGGREGATE_EVENTS => aggregates(check, &state),
                    _ => ours(check, name, &state),
                });
                findings.push(consumers(name, jetstream.consumers(name).await));
                findings.extend(room(name, &state));
            }
            Ok(None) => findings.push(absent(check, name)),
            Err(error) => {
                findings.push(unanswered(check, &error));
                // The others would fail in the same way.
                return findings;
            }
        }
    }
    findings
}

fn unanswered(check: String, error: &BrokerError) -> Finding {
    let advice = match error {
        BrokerError::Unavailable { .. } => {
            "has the server JetStream (`jetstream {}` in its configuration), and may this user ask `$JS.API.>`?"
        }
        _ => "look into the server's log",
    };
    Finding::fail(check, error.to_string(), advice)
}

fn absent(check: String, name: &str) -> Finding {
    match name {
        AGGREGATE_EVENTS => Finding::warn(
            check,
            "is not there, so that no saga hears of aggregates",
            "whoever keeps aggregates makes it, with the subjects `tenant.*.aggregate.*.*`, or `aggregate.*.*` without tenants",
        ),
        _ => Finding::warn(check, "is not there", "the saga service makes it when it starts"),
    }
}

/// A stream of ours, as it is wanted with tenants or without: whichever is nearer.
fn ours(check: String, name: &str, state: &StreamState) -> Finding {
    let wanted = [true, false].into_iter().flat_map(streams).filter(|spec| spec.name == name);
    let nearest = wanted.map(|spec: StreamSpec| spec.differences(&state.settings)).min_by_key(Vec::len);
    match nearest {
        Some(differences) if !differences.is_empty() => Finding::fail(
            check,
            shown(&differences),
            "the saga service does not work on it so; change the stream, or delete it while nothing is in it",
        ),
        _ => Finding::ok(check, counted(state)),
    }
}

/// The stream of aggregates, which external services own: it must have their subjects.
fn aggregates(check: String, state: &StreamState) -> Finding {
    let subjects = &state.settings.subjects;
    let has = |wanted: &str| subjects.iter().any(|subject| subject == wanted || subject == ">");
    if has("tenant.*.aggregate.*.*") || has("aggregate.*.*") || has("tenant.*.aggregate.>") {
        return Finding::ok(check, counted(state));
    }
    Finding::warn(
        check,
        format!("has the subjects {}", subjects.join(", ")),
        "sagas read `tenant.*.aggregate.*.*`, or `aggregate.*.*` without tenants",
    )
}

/// Warns of a stream that has room for few more consumers; ignores others.
fn room(stream: &str, state: &StreamState) -> Option<Finding> {
    let (most, bound) = match state.settings.max_consumers {
        most @ 1.. => (most, "at most"),
        _ => (CONSUMERS_DEFAULT, "which does not say how many there may be, and newer servers end at"),
    };
    let has = i64::try_from(state.consumers).unwrap_or(i64::MAX);
    (has.saturating_mul(10) >= most.saturating_mul(9)).then(|| {
        let found = format!("{has} consumers, {bound} {most}: lanes beyond that read nothing");
        let advice = format!("give the stream a higher max_consumers, as with `nats stream edit {stream}`");
        Finding::warn(format!("room of {stream}"), found, advice)
    })
}

fn counted(state: &StreamState) -> String {
    let messages =
        labels::count(usize::try_from(state.messages).unwrap_or(usize::MAX), "message", "messages");
    format!("as wanted, with {messages}")
}

fn shown(differences: &[SettingDifference]) -> String {
    let mut shown: Vec<_> = differences.iter().take(SHOWN_MAX).map(ToString::to_string).collect();
    if differences.len() > SHOWN_MAX {
        shown.push(format!("and {} more", differences.len() - SHOWN_MAX));
    }
    shown.join("; ")
}

/// The consumers of a stream: those of lanes are checked, others are not ours.
fn consumers(stream: &str, listed: Result<Vec<ConsumerListing>, BrokerError>) -> Finding {
    let check = format!("consumers of {stream}");
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) => return unanswered(check, &error),
    };
    let (mut wrong, mut count, mut pending) = (Vec::new(), 0_usize, 0_u64);
    for consumer in listed.iter().filter(|consumer| is_of_lane(&consumer.name)) {
        count += 1;
        pending = pending.saturating_add(consumer.pending);
        wrong.extend(differences(stream, consumer).map(|what| format!("{}: {what}", consumer.name)));
    }
    if wrong.is_empty() {
        let count = labels::count(count, "consumer of a lane", "consumers of lanes");
        return Finding::ok(check, format!("{count}, as wanted, with {pending} messages to come"));
    }
    let more = wrong.len().saturating_sub(SHOWN_MAX);
    wrong.truncate(SHOWN_MAX);
    if more > 0 {
        wrong.push(format!("and {more} more"));
    }
    let advice =
        "somebody else changed it: delete the consumer, and its lane makes it anew from where it was";
    Finding::fail(check, wrong.join("; "), advice)
}

fn is_of_lane(name: &str) -> bool {
    name.starts_with("sg_") || name.starts_with("ef_")
}

/// How a consumer of a lane is not as that would make it; nothing where it is.
fn differences(stream: &str, consumer: &ConsumerListing) -> Option<String> {
    let Some(filter) = consumer.filter() else { return Some("it has not one filter".to_owned()) };
    let Some((lane, source)) = lane_of(&consumer.name, filter) else {
        return Some(format!("its filter `{filter}` is none of a lane of this name"));
    };
    let wanted = (source.consumer(&lane), source.filter(lane.tenant()));
    if (wanted.0.as_str(), wanted.1.as_str()) != (consumer.name.as_str(), filter) {
        return Some(format!("its filter `{filter}` is that of the consumer {}", wanted.0));
    }
    let spec = CursorSpec::new(stream, &wanted.0, &wanted.1, CursorStart::After(0));
    match consumer.differences(&spec) {
        Ok(differences) if differences.is_empty() => None,
        Ok(differences) => Some(shown(&differences)),
        Err(error) => Some(error.to_string()),
    }
}

/// The lane that a consumer is named after, and the source that its filter lets through.
fn lane_of(name: &str, filter: &str) -> Option<(WorkflowLane, ConsumerSource)> {
    let tokens: Vec<&str> = filter.split('.').collect();
    let (tenant, rest) = match tokens.as_slice() {
        ["tenant", tenant, rest @ ..] => (tenant.parse().ok()?, rest),
        rest => (TenantId::single(), rest),
    };
    let [kind, what, "*"] = rest else { return None };
    let source = match *kind {
        "aggregate" => ConsumerSource::Aggregate((*what).to_owned()),
        "effect" => ConsumerSource::Commands(what.parse().ok()?),
        "effect_result" => ConsumerSource::Results(what.parse().ok()?),
        "workflow" => ConsumerSource::Verbs(what.parse().ok()?),
        _ => return None,
    };
    if let ConsumerSource::Commands(effect) = &source {
        return Some((WorkflowLane::Effect { tenant, effect: effect.clone() }, source));
    }
    // Names of sagas have no `_`.
    let mut parts = name.strip_prefix("sg_")?.splitn(3, '_');
    let saga: SagaName = parts.next()?.parse().ok()?;
    let shard = parts.next()?.parse().ok()?;
    Some((WorkflowLane::Saga { tenant, saga, shard }, source))
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingLevel;
    use super::*;

    fn server(version: &str, max_payload: usize) -> BrokerDescription {
        BrokerDescription {
            version_text: version.to_owned(),
            version: BrokerVersion::parse(version),
            max_payload,
        }
    }

    #[test]
    fn servers_are_judged_by_version_and_limits() {
        for (text, level) in [
            ("2.9.9", FindingLevel::Fail),
            ("2.9.10", FindingLevel::Ok),
            ("2.12.0-RC.1", FindingLevel::Ok),
            ("two", FindingLevel::Warn),
        ] {
            assert_eq!(version(&server(text, 0)).level, level, "{text}");
        }
        assert_eq!(payload(&server("2.9.10", 1024 * 1024)).level, FindingLevel::Ok);
        let small = payload(&server("2.9.10", 65_536));
        assert_eq!(small.level, FindingLevel::Warn);
        assert!(small.found.contains("have at most 49152"), "{small:?}");
        assert_eq!(durability(&server("2.9.10", 0)), None);
        assert!(
            durability(&server("2.10.4", 0))
                .is_some_and(|finding| finding.advice.contains("sync_interval: always"))
        );
    }

    #[test]
    fn a_stream_near_its_limit_of_consumers_is_reported() {
        let state = |max_consumers, consumers| {
            let settings = broker::StreamSettings {
                subjects: Vec::new(),
                retention: broker::StreamRetention::Limits,
                storage: broker::StreamStorage::File,
                discard: broker::StreamDiscard::New,
                duplicate_window: Duration::ZERO,
                max_age: Duration::ZERO,
                max_consumers,
                replicas: 1,
            };
            StreamState {
                incarnation: 0,
                first_sequence: 1,
                last_sequence: 0,
                messages: 0,
                consumers,
                settings,
            }
        };
        assert_eq!(room("S", &state(10, 8)), None);
        assert!(
            room("S", &state(10, 9)).is_some_and(|finding| finding.found.contains("9 consumers, at most 10"))
        );
        assert_eq!(room("S", &state(-1, 899)), None);
        assert!(
            room("S", &state(-1, 900))
                .is_some_and(|finding| finding.found.contains("newer servers end at 1000"))
        );
    }

    #[test]
    fn a_consumer_leads_to_its_lane() {
        let tenant: TenantId = "a_b".parse().expect("a tenant");
        let saga: SagaName = "order".parse().expect("a name");
        let effect = "pay".parse().expect("a name");
        let lane = WorkflowLane::Saga { tenant: tenant.clone(), saga: saga.clone(), shard: 3 };
        for source in [
            ConsumerSource::Aggregate("Order".to_owned()),
            ConsumerSource::Results("pay".parse().expect("a name")),
            ConsumerSource::Verbs(saga),
        ] {
            let found = lane_of(&source.consumer(&lane), &source.filter(&tenant));
            assert_eq!(found, Some((lane.clone(), source)));
        }
        let lane = WorkflowLane::Effect { tenant: TenantId::single(), effect };
        let source = ConsumerSource::Commands("pay".parse().expect("a name"));
        let name = source.consumer(&lane);
        assert_eq!(lane_of(&name, &source.filter(lane.tenant())), Some((lane, source)));
        for (name, filter) in
            [("sg_order", "aggregate.Order.*"), ("sg_order_0_a", "aggregate.>"), ("ef_x", "a.b.*")]
        {
            assert_eq!(lane_of(name, filter), None, "{name} {filter}");
        }
    }
}
