//! Messages as tables, and as they are read.

use model::Timestamp;
use model::mail::TO_ADMINS;
use proto::convert::{enums, time as wire_time};
use proto::v1;

use super::{table, time};

/// Characters of a key that are shown where there is no room for all of it.
const KEY_CHARS_SHOWN: usize = 12;
/// Length of a key in characters.
const KEY_CHARS: usize = 64;

/// Where a message stands, in lower case.
#[must_use]
pub fn status(status: v1::MessageStatus) -> &'static str {
    enums::message_status_from_wire(status.into()).map_or("unknown", |status| status.as_str())
}

fn transport_status(status: v1::TransportStatus) -> &'static str {
    enums::transport_status_from_wire(status.into()).map_or("unknown", |status| status.as_str())
}

fn message_type(kind: v1::MessageType) -> &'static str {
    enums::message_type_from_wire(kind.into()).map_or("unknown", |kind| kind.as_str())
}

fn format(format: v1::MessageFormat) -> &'static str {
    enums::message_format_from_wire(format.into()).map_or("text", |format| format.as_str())
}

/// A list of messages.
#[must_use]
pub fn list(messages: &[v1::Message], now: Timestamp) -> String {
    let rows: Vec<_> = messages
        .iter()
        .map(|message| {
            vec![
                message.key.clone(),
                message_type(message.message_type()).to_owned(),
                shortened(&sender(message)),
                shortened(&origin(message)),
                shortened(&recipient(message)),
                message.topic.clone(),
                status(message.status()).to_owned(),
                time::ago(now, message.create_time.map(wire_time::from_wire)),
            ]
        })
        .collect();
    table::render(&["KEY", "TYPE", "FROM", "ORIGIN", "TO", "TOPIC", "STATUS", "CREATED"], &rows)
}

/// A list of messages that will not arrive.
#[must_use]
pub fn dead_letters(messages: &[v1::Message], now: Timestamp) -> String {
    let rows: Vec<_> = messages
        .iter()
        .map(|message| {
            vec![
                message.key.clone(),
                message_type(message.message_type()).to_owned(),
                shortened(&recipient(message)),
                message.topic.clone(),
                time::ago(now, message.create_time.map(wire_time::from_wire)),
                message.error.clone(),
            ]
        })
        .collect();
    table::render_whole(&["KEY", "TYPE", "TO", "TOPIC", "CREATED", "WHY"], &rows)
}

/// A message, what happened to it, and its text.
#[must_use]
pub fn whole(message: &v1::Message) -> String {
    let v1::Message { key, context_id, topic, target_context, flow_id, job_keys, error, .. } = message;
    let mut pairs = vec![
        ("message", key.clone()),
        ("type", format!("{}, {}", message_type(message.message_type()), format(message.format()))),
        ("from", table::shown_whole(&sender(message))),
        ("to", table::shown_whole(&recipient(message))),
    ];
    if *target_context > 0 {
        pairs.push(("there", format!("context {target_context}")));
    }
    if !topic.is_empty() {
        pairs.push(("topic", table::shown_whole(topic)));
    }
    if *flow_id > 0 {
        pairs.push(("flow", flow_id.to_string()));
    }
    if !job_keys.is_empty() {
        pairs.push(("jobs", job_keys.len().to_string()));
    }
    pairs.push(("context", context_id.to_string()));
    pairs.push(("status", status(message.status()).to_owned()));
    if !error.is_empty() {
        pairs.push(("why", table::shown_whole(error)));
    }
    pairs.push(("transport", transport_status(message.transport_status()).to_owned()));
    if message.message_type() != v1::MessageType::Job {
        pairs.push(("signed", signed(message).to_owned()));
    }
    if let Some(origin) = &message.origin {
        let v1::MessageOrigin { coordinator, context_uid, caller_id, message_id, own } = origin;
        let whose = if *own { "this coordinator" } else { "coordinator" };
        let text =
            format!("message {caller_id}:{message_id} of context {context_uid} at {whose} {coordinator}");
        pairs.push(("origin", table::shown_whole(&text)));
    }
    pairs.push(("created", time::utc(wire_time::required(message.create_time))));
    pairs.push(("changed", time::utc(wire_time::required(message.update_time))));
    let mut text = table::pairs(&pairs);
    if !message.logs.is_empty() {
        text.push('\n');
        text.push_str(&happened(&message.logs));
    }
    if !message.text.is_empty() {
        text.push('\n');
        text.push_str(&readable(&message.text));
    }
    text
}

/// A message as it is read on arrival, with an empty line behind it.
#[must_use]
pub fn received(message: &v1::Message) -> String {
    let mut pairs = vec![
        (message_type(message.message_type()), message.key.clone()),
        ("from", table::shown_whole(&sender(message))),
        ("origin", table::shown_whole(&origin(message))),
        ("signed", signed(message).to_owned()),
        ("sent", time::utc(wire_time::required(message.create_time))),
    ];
    if !message.topic.is_empty() {
        pairs.push(("topic", table::shown_whole(&message.topic)));
    }
    format!("{}\n{}\n", table::pairs(&pairs), readable(&message.text))
}

fn happened(logs: &[v1::MessageLogEntry]) -> String {
    let rows: Vec<_> = logs
        .iter()
        .map(|entry| vec![time::utc(wire_time::required(entry.time)), entry.text.clone()])
        .collect();
    table::render_whole(&["WHEN", "WHAT"], &rows)
}

fn signed(message: &v1::Message) -> &'static str {
    match (message.verified, message.origin.is_some()) {
        (true, _) => "yes, by the sender",
        (false, true) => "no: only the coordinator that it came from says who sent it",
        (false, false) => "no",
    }
}

/// The coordinator that it came from, and whether only that coordinator vouches for its sender.
fn origin(message: &v1::Message) -> String {
    match &message.origin {
        None => "here".to_owned(),
        Some(origin) if origin.own => "here".to_owned(),
        Some(origin) if message.verified => format!("{}, verified", origin.coordinator),
        Some(origin) => format!("{}, not verified", origin.coordinator),
    }
}

fn sender(message: &v1::Message) -> String {
    match (message.caller_id, message.from_pubkey.as_str()) {
        (0, "") => "-".to_owned(),
        (0, key) => key.to_owned(),
        (id, _) => format!("actor {id}"),
    }
}

/// Recipient of the message, which a number alone does not identify.
fn recipient(message: &v1::Message) -> String {
    let to = &message.to;
    match (to.parse::<u32>(), message.message_type()) {
        (Ok(id), v1::MessageType::Job) => format!("runner {id}"),
        (Ok(id), _) => format!("actor {id}"),
        (Err(_), _) if to == TO_ADMINS => "the context's admins".to_owned(),
        (Err(_), _) => to.clone(),
    }
}

/// A text with its keys cut short.
fn shortened(text: &str) -> String {
    let parts = text.split_inclusive(|c: char| !c.is_ascii_hexdigit());
    let mut short = String::new();
    for part in parts {
        let digits = part.trim_end_matches(|c: char| !c.is_ascii_hexdigit());
        if digits.len() == KEY_CHARS {
            short.push_str(&digits[..KEY_CHARS_SHOWN]);
            short.push('…');
            short.push_str(&part[digits.len()..]);
        } else {
            short.push_str(part);
        }
    }
    short
}

/// Returns foreign text line by line, without characters that a terminal would act on.
fn readable(text: &str) -> String {
    let shown = |line: &str| {
        let parts: Vec<_> = line.split('\t').map(table::shown_whole).collect();
        format!("{}\n", parts.join("\t"))
    };
    text.lines().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> String {
        "0123456789abcdef".repeat(4)
    }

    #[test]
    fn keys_are_cut_short_in_lists() {
        assert_eq!(shortened(&key()), "0123456789ab…");
        let there = format!("{}@mycelium:{}", key(), key());
        assert_eq!(shortened(&there), "0123456789ab…@mycelium:0123456789ab…");
        assert_eq!(shortened(&format!("{}@grpc://h:7705", key())), "0123456789ab…@grpc://h:7705");
        assert_eq!(shortened("actor 2"), "actor 2");
    }

    #[test]
    fn what_others_wrote_does_not_reach_the_terminal_as_it_is() {
        let message = v1::Message {
            key: "message:0:3".into(),
            from_pubkey: key(),
            to: "1".into(),
            topic: "a\u{1b}[31m".into(),
            message_type: v1::MessageType::Chat.into(),
            text: "one\r\n\ttwo\u{1b}]0;x\u{7}\n".into(),
            origin: Some(v1::MessageOrigin::default()),
            ..Default::default()
        };
        let text = received(&message);
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text}");
        assert!(text.ends_with("\n\none\n\ttwo\\x1b]0;x\\x07\n\n"), "{text}");
        assert!(text.starts_with("chat    message:0:3\nfrom    0123"), "{text}");
        assert!(text.contains("signed  no: only the coordinator"), "{text}");
        assert!(!whole(&message).contains('\u{1b}'));
    }

    #[test]
    fn a_number_is_an_actor_or_a_runner() {
        let mut message = v1::Message { caller_id: 1, to: "2".into(), ..Default::default() };
        message.set_message_type(v1::MessageType::Mail);
        assert_eq!((sender(&message), recipient(&message)), ("actor 1".into(), "actor 2".into()));
        message.set_message_type(v1::MessageType::Job);
        assert_eq!(recipient(&message), "runner 2");
        let message = v1::Message { to: TO_ADMINS.into(), ..message };
        assert_eq!(recipient(&message), "the context's admins");
    }
}
