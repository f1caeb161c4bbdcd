//! Runners and their state.

use std::collections::BTreeMap;

use model::actor::is_key;
use model::labels::check_labels;
use model::{
    Address, EnvelopeForm, InstanceInfo, Name, Presence, RequestId, Revision, Runner, RunnerId, RunnerView,
    ScriptType, Violations, limits,
};
use prost::Message as _;

use crate::convert::{enums, flow::WireRecordError, time};
use crate::{required, v1};

/// To the wire.
#[must_use]
pub fn to_wire(view: &RunnerView) -> v1::Runner {
    let RunnerView { runner, presence, last_seen, live } = view;
    let Runner {
        id,
        pubkey,
        address,
        topic,
        signing_key,
        script_types,
        group,
        labels,
        local,
        envelope,
        secret_ref,
        created_at,
        updated_at,
        drained_at,
        deleted_at,
        revision,
    } = runner;
    v1::Runner {
        id: id.0,
        pubkey: pubkey.clone(),
        address: address.to_string(),
        topic: topic.clone(),
        script_types: script_types.iter().map(|kind| enums::script_type_to_wire(*kind).into()).collect(),
        group: group.as_ref().map(ToString::to_string).unwrap_or_default(),
        labels: labels.clone(),
        local: *local,
        create_time: Some(time::to_wire(*created_at)),
        update_time: Some(time::to_wire(*updated_at)),
        revision: revision.0,
        live: *live,
        last_seen_time: last_seen.map(time::to_wire),
        supervisor: presence.as_ref().map(|presence| presence.supervisor.clone()).unwrap_or_default(),
        instances: presence.iter().flat_map(|presence| &presence.instances).map(instance_to_wire).collect(),
        queued: presence.as_ref().map_or(0, |presence| presence.queued),
        draining: presence.as_ref().is_some_and(|presence| presence.draining),
        signing_key: signing_key.clone(),
        envelope: envelope_to_wire(*envelope).into(),
        secret_ref: secret_ref.clone(),
        drain_time: drained_at.map(time::to_wire),
        delete_time: deleted_at.map(time::to_wire),
    }
}

/// How many bytes it has on the wire.
#[must_use]
pub fn wire_bytes(view: &RunnerView) -> usize {
    to_wire(view).encoded_len()
}

fn envelope_to_wire(form: EnvelopeForm) -> v1::EnvelopeForm {
    match form {
        EnvelopeForm::Signed => v1::EnvelopeForm::Signed,
        EnvelopeForm::Plain => v1::EnvelopeForm::Plain,
    }
}

fn envelope_from_wire(number: i32) -> Option<EnvelopeForm> {
    match v1::EnvelopeForm::try_from(number).ok()? {
        v1::EnvelopeForm::Unspecified | v1::EnvelopeForm::Signed => Some(EnvelopeForm::Signed),
        v1::EnvelopeForm::Plain => Some(EnvelopeForm::Plain),
    }
}

/// An instance to the wire.
#[must_use]
pub fn instance_to_wire(instance: &InstanceInfo) -> v1::Instance {
    let InstanceInfo { script_type, group, number, slots, busy, isolation, layers, version } = instance;
    v1::Instance {
        script_type: enums::script_type_to_wire(*script_type).into(),
        group: group.to_string(),
        number: *number,
        slots: *slots,
        busy: *busy,
        isolation: isolation.to_string(),
        layers: layers.clone(),
        version: version.clone(),
    }
}

/// Reads a runner from the wire, as one service sends it to another.
///
/// # Errors
/// Names the part that cannot be read.
pub fn from_wire(runner: v1::Runner) -> Result<RunnerView, WireRecordError> {
    let bad = |error: &dyn std::fmt::Display| WireRecordError(error.to_string());
    let v1::Runner {
        id,
        pubkey,
        address,
        topic,
        script_types,
        group,
        labels,
        local,
        create_time,
        update_time,
        revision,
        live,
        last_seen_time,
        supervisor,
        instances,
        queued,
        draining,
        signing_key,
        envelope,
        secret_ref,
        drain_time,
        delete_time,
    } = runner;
    let instances = instances.into_iter().map(instance_from_wire).collect::<Result<Vec<_>, _>>()?;
    let presence = (!supervisor.is_empty()).then(|| Presence {
        supervisor,
        version: instances.first().map(|instance| instance.version.clone()).unwrap_or_default(),
        instances,
        queued,
        draining,
    });
    let runner = Runner {
        id: RunnerId(id),
        pubkey,
        address: address.parse().map_err(|error| bad(&error))?,
        topic,
        signing_key,
        script_types: script_types.into_iter().filter_map(enums::script_type_from_wire).collect(),
        group: match group.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|error| bad(&error))?),
        },
        labels,
        local,
        envelope: envelope_from_wire(envelope).ok_or_else(|| bad(&"an unknown form of envelopes"))?,
        secret_ref,
        created_at: time::required(create_time),
        updated_at: time::required(update_time),
        drained_at: drain_time.map(time::from_wire),
        deleted_at: delete_time.map(time::from_wire),
        revision: Revision(revision),
    };
    Ok(RunnerView { runner, presence, last_seen: last_seen_time.map(time::from_wire), live })
}

fn instance_from_wire(instance: v1::Instance) -> Result<InstanceInfo, WireRecordError> {
    let v1::Instance { script_type, group, number, slots, busy, isolation, version, layers } = instance;
    Ok(InstanceInfo {
        script_type: enums::script_type_from_wire(script_type)
            .ok_or_else(|| WireRecordError("an instance without script type".into()))?,
        group: group.parse().map_err(|error| WireRecordError(format!("{error}")))?,
        number,
        slots,
        busy,
        // A level that this version does not know promises nothing here.
        isolation: isolation.parse().unwrap_or_default(),
        layers,
        version,
    })
}

/// Registration of a runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRunner {
    /// The wished id.
    pub id: Option<RunnerId>,
    /// Where the supervisor is reached.
    pub address: Address,
    /// The topic its requests travel under.
    pub topic: String,
    /// Script types that may be sent there.
    pub script_types: Vec<ScriptType>,
    /// The group that jobs without one of their own go to.
    pub group: Option<Name>,
    /// Labels that selectors may ask for.
    pub labels: BTreeMap<String, String>,
    /// The supervisor is on this machine.
    pub local: bool,
    /// The key that it signs with; empty when it is not known.
    pub signing_key: String,
    /// Form in which requests to the supervisor travel.
    pub envelope: EnvelopeForm,
    /// The name of the secret that goes with each plain request; empty for none.
    pub secret_ref: String,
}

/// The topic under which supervisors take requests unless their record says otherwise.
pub const TOPIC_DEFAULT: &str = "supervisor.rpc";

/// Change of a registered runner, with the fields of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerUpdate {
    /// Which one.
    pub id: RunnerId,
    /// The revision that the change builds on; nothing for any.
    pub expected_revision: Option<Revision>,
    /// Values from now on; the id in them is the runner's.
    pub values: NewRunner,
}

/// Parses a change.
///
/// # Errors
/// Everything that is wrong with it.
pub fn from_update(request: v1::UpdateRunnerRequest) -> Result<RunnerUpdate, Violations> {
    let missing = required::missing(&request);
    let v1::UpdateRunnerRequest {
        request_id,
        context_id,
        runner_id,
        expected_revision,
        address,
        topic,
        script_types,
        group,
        labels,
        local,
        signing_key,
        envelope,
        secret_ref,
    } = request;
    let values = v1::RegisterRunnerRequest {
        request_id,
        context_id,
        runner_id,
        address,
        topic,
        script_types,
        group,
        labels,
        local,
        signing_key,
        envelope,
        secret_ref,
    };
    let values = values_from_wire(values, missing)?;
    Ok(RunnerUpdate { id: RunnerId(runner_id), expected_revision: expected(expected_revision), values })
}

/// The revision that a change builds on; nothing for any.
#[must_use]
pub fn expected(revision: u64) -> Option<Revision> {
    (revision != 0).then_some(Revision(revision))
}

/// Parses a registration.
///
/// # Errors
/// Everything that is wrong with it.
pub fn from_register(request: v1::RegisterRunnerRequest) -> Result<NewRunner, Violations> {
    let missing = required::missing(&request);
    values_from_wire(request, missing)
}

fn values_from_wire(
    request: v1::RegisterRunnerRequest,
    mut violations: Violations,
) -> Result<NewRunner, Violations> {
    let v1::RegisterRunnerRequest {
        request_id,
        context_id: _,
        runner_id,
        address,
        topic,
        script_types,
        group,
        labels,
        local,
        signing_key,
        envelope,
        secret_ref,
    } = request;
    // A caller that stores request ids has taken the id out before, and parsed it.
    let _ = RequestId::parse(&request_id, &mut violations);
    let address = violations.take("address", Address::from_input(&address));
    if topic.len() > limits::RUNNER_TOPIC_BYTES_MAX {
        let (max, found) = (limits::RUNNER_TOPIC_BYTES_MAX, topic.len());
        violations.add("topic", format!("a topic has at most {max} bytes, not {found}"));
    } else if let Err(hidden) = model::printable::check_line(&topic) {
        violations.add("topic", hidden);
    }
    let script_types = script_types_from_wire(&script_types, &mut violations);
    let group = match group.as_str() {
        "" => None,
        text => violations.take("group", text.parse()),
    };
    check_labels(&labels, "labels", &mut violations);
    check_key(&mut violations, &signing_key);
    let envelope = violations.take("envelope", envelope_from_wire(envelope).ok_or("give signed or plain"));
    let envelope = envelope.unwrap_or_default();
    check_plain(&mut violations, envelope, address.as_ref(), &signing_key, &secret_ref);
    let new = address.map(|address| NewRunner {
        id: (runner_id != 0).then_some(RunnerId(runner_id)),
        address,
        topic: if topic.is_empty() { TOPIC_DEFAULT.to_owned() } else { topic },
        script_types,
        group,
        labels,
        local,
        signing_key,
        envelope,
        secret_ref,
    });
    violations.into_result(new)
}

fn script_types_from_wire(numbers: &[i32], violations: &mut Violations) -> Vec<ScriptType> {
    if numbers.len() > limits::RUNNER_SCRIPT_TYPES_MAX {
        let (max, found) = (limits::RUNNER_SCRIPT_TYPES_MAX, numbers.len());
        violations.add("script_types", format!("at most {max} are allowed, these are {found}"));
        return Vec::new();
    }
    let parse = |(i, number): (usize, &i32)| {
        let parsed = enums::script_type_from_wire(*number).ok_or("unknown script type");
        violations.take(&format!("script_types[{i}]"), parsed)
    };
    numbers.iter().enumerate().filter_map(parse).collect()
}

fn check_key(violations: &mut Violations, key: &str) {
    if !key.is_empty() && !is_key(key) {
        violations.add("signing_key", "a key has 64 lower-case hex digits");
    }
}

/// Plain requests say nothing of who makes them: the transport has to, and only a bus's does so for both sides.
fn check_plain(
    violations: &mut Violations,
    envelope: EnvelopeForm,
    address: Option<&Address>,
    signing_key: &str,
    secret_ref: &str,
) {
    if envelope == EnvelopeForm::Signed {
        if !secret_ref.is_empty() {
            violations.add("secret_ref", "a secret goes with plain requests only");
        }
        return;
    }
    if matches!(address, Some(Address::Grpc { .. })) {
        violations
            .add("envelope", "a stream carries signed envelopes only; plain ones need a `mycelium:` address");
    }
    if !signing_key.is_empty() {
        violations.add("signing_key", "a runner with plain envelopes signs nothing: leave the key out");
    }
    if !secret_ref.is_empty()
        && let Err(error) = secret_ref.parse::<Name>()
    {
        violations.add("secret_ref", error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest() -> v1::RegisterRunnerRequest {
        let label = |number: usize| {
            let key = format!("{number:0>width$}", width = limits::LABEL_KEY_BYTES_MAX);
            (key, "v".repeat(limits::LABEL_VALUE_BYTES_MAX))
        };
        v1::RegisterRunnerRequest {
            request_id: "r".repeat(64),
            context_id: 1,
            runner_id: u32::MAX,
            address: format!("grpc://{}:65535", "h".repeat(limits::HOST_BYTES_MAX)),
            topic: "t".repeat(limits::RUNNER_TOPIC_BYTES_MAX),
            script_types: vec![1; limits::RUNNER_SCRIPT_TYPES_MAX],
            group: "g".repeat(limits::NAME_CHARS_MAX),
            labels: (0..limits::LABELS_MAX).map(label).collect(),
            signing_key: "0a".repeat(32),
            ..Default::default()
        }
    }

    #[test]
    fn the_largest_registration_is_taken_and_nothing_larger() {
        let new = from_register(largest()).expect("within its limits");
        assert_eq!(new.labels.len(), limits::LABELS_MAX);
        let mut more = largest();
        more.request_id.push('r');
        more.address = format!("grpc://{}:1", "h".repeat(limits::HOST_BYTES_MAX + 1));
        more.topic.push('t');
        more.script_types.push(1);
        more.group.push('g');
        more.labels.insert("one more".into(), String::new());
        let found = from_register(more).expect_err("beyond every limit");
        let fields: Vec<_> = found.as_slice().iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, ["request_id", "address", "topic", "script_types", "group", "labels"]);
    }

    #[test]
    fn hidden_characters_are_refused_by_field() {
        let mut hostile = largest();
        hostile.topic = "t\u{1b}[2J".into();
        hostile.labels = [("zone".to_owned(), "\u{202e}eu".to_owned())].into();
        let found = from_register(hostile).expect_err("a terminal would obey");
        let fields: Vec<_> = found.as_slice().iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, ["topic", "labels[zone]"]);
    }

    #[test]
    fn a_change_has_the_limits_of_a_registration() {
        let request = v1::UpdateRunnerRequest {
            request_id: "two words".into(),
            runner_id: 1,
            address: "nowhere".into(),
            labels: BTreeMap::from([("k".to_owned(), "v".repeat(limits::LABEL_VALUE_BYTES_MAX + 1))]),
            ..Default::default()
        };
        let found = from_update(request).expect_err("nothing is right");
        let fields: Vec<_> = found.as_slice().iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, ["context_id", "request_id", "address", "labels[k]"]);
    }

    #[test]
    fn a_record_from_before_the_limits_is_read() {
        let record = v1::Runner {
            id: 1,
            address: format!("grpc://{}:1", "h".repeat(2000)),
            labels: BTreeMap::from([("k".to_owned(), "v".repeat(1_000_000))]),
            ..Default::default()
        };
        let view = from_wire(record.clone()).expect("it was taken then");
        assert!(wire_bytes(&view) >= record.encoded_len());
    }

    #[test]
    fn a_presence_has_no_more_bytes_on_the_wire_than_it_is_counted_with() {
        let largest = InstanceInfo {
            script_type: ScriptType::Python,
            group: "g".repeat(limits::NAME_CHARS_MAX).parse().expect("a name"),
            number: u32::MAX,
            slots: u32::MAX,
            busy: u32::MAX,
            isolation: model::Isolation::Contained,
            layers: vec![String::new(), "l".repeat(100_000)],
            version: "v".repeat(20_000),
        };
        let smallest = InstanceInfo { layers: vec![], version: String::new(), ..largest.clone() };
        for instances in [vec![largest], vec![smallest; 10], vec![]] {
            let presence = Presence {
                supervisor: "s".into(),
                version: "v".into(),
                instances,
                queued: u64::MAX,
                draining: true,
            };
            let bytes = presence.bytes();
            let runner = from_wire(v1::Runner { address: "grpc://h:1".into(), ..Default::default() });
            let alone = runner.expect("a runner");
            let view = RunnerView { presence: Some(presence), ..alone.clone() };
            assert!(wire_bytes(&view) - wire_bytes(&alone) <= bytes);
        }
    }
}
