//! Trace contexts of work, as `traceparent` of W3C has them.
//!
//! Work that an event orders belongs to the trace of the event; other work begins a trace of its own, for each input one. They
//! come from the journal, so that work which is sent again is the same span.

use model::CommandId;

use crate::Json;
use crate::input::{Event, What};
use crate::step::{JournalInput, Row};

/// Version, trace, parent and flags, with what stands between them.
const LENGTH: usize = 55;

/// Makes the `traceparent` of a piece of work that a row of the journal ordered.
#[must_use]
pub fn of_work(row: &Row, command: CommandId) -> String {
    let parent = match &row.input {
        JournalInput::Came(input) => match &input.what {
            What::Event(event) => of_event(event),
            What::Result(_) | What::Timer { .. } | What::Verb { .. } => None,
        },
        JournalInput::Kept(_) => None,
    };
    // No two inputs of any instance share a chain, nor two commands their last bits.
    let span = command.bits() & u128::from(u64::MAX);
    match parent {
        Some((trace, flags)) => format!("00-{trace}-{span:016x}-{flags}"),
        None => {
            let chain = row.chain.to_string();
            format!("00-{}-{span:016x}-01", chain.get(..32).unwrap_or(&chain))
        }
    }
}

/// The trace of an event and its flags; nothing where it tells none, or none that is valid.
fn of_event(event: &Event) -> Option<(&str, &str)> {
    let text = event.body.get("metadata")?.get("traceparent").and_then(Json::as_text)?;
    let parts: Vec<_> = text.split('-').collect();
    let [version, trace, parent, flags] = parts.as_slice() else { return None };
    let is_hex = |part: &str, length: usize| {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        part.len() == length && part.bytes().all(is_digit)
    };
    let is_id = |part: &str, length| is_hex(part, length) && part.bytes().any(|byte| byte != b'0');
    let is_valid = text.len() == LENGTH
        && is_hex(version, 2)
        && *version != "ff"
        && is_id(trace, 32)
        && is_id(parent, 16)
        && is_hex(flags, 2);
    is_valid.then_some((*trace, *flags))
}

#[cfg(test)]
mod tests {
    use model::{BlobHash, SagaStatus, Timestamp};

    use super::*;
    use crate::input::Input;

    fn row(traceparent: &str) -> Row {
        let metadata = Json::object([("traceparent", Json::text(traceparent))]);
        let event =
            Event { body: Json::object([("metadata", metadata)]), ..Event::sent("r", "A", Json::Null) };
        let time = Timestamp::from_millis(0);
        Row {
            revision: 1,
            input: JournalInput::Came(Box::new(Input { time, what: What::Event(event) })),
            definition: None,
            now: time,
            fate: "applied".to_owned(),
            status: SagaStatus::Running,
            step: "a".parse().expect("a step"),
            reason: None,
            work: Vec::new(),
            chain: BlobHash::of(b"x"),
            state: None,
        }
    }

    #[test]
    fn work_belongs_to_the_trace_of_its_event() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let traced = of_work(&row(parent), CommandId::from_bits((9 << 64) | 0xab));
        assert_eq!(traced, "00-4bf92f3577b34da6a3ce929d0e0e4736-00000000000000ab-00");
        let own = format!("00-{}-00000000000000ab-01", &BlobHash::of(b"x").to_string()[..32]);
        for wrong in [
            "",
            "x",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-00",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\r",
        ] {
            assert_eq!(of_work(&row(wrong), CommandId::from_bits(0xab)), own, "{wrong}");
        }
        // Without an event there is a trace of the input.
        let kept = Row { input: JournalInput::Kept(1), ..row(parent) };
        assert_eq!(of_work(&kept, CommandId::from_bits(0xab)), own);
    }
}
