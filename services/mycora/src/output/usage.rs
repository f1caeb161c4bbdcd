//! How much a context has, as people read it.

use std::time::Duration;

use proto::v1;
use proto::v1::ContextUsageKind as Kind;

use super::{table, time};

/// A row for each kind, the sum, and the bounds of what is kept.
#[must_use]
pub fn context_usage(answer: &v1::GetContextUsageResponse) -> String {
    let v1::GetContextUsageResponse { entries, bytes: all, bytes_max, retention } = answer;
    let mut rows: Vec<_> = entries.iter().map(row).collect();
    rows.push(vec!["total".to_owned(), String::new(), String::new(), bytes(*all), bytes(*bytes_max)]);
    let mut text = table::render(&["KIND", "COUNT", "AT MOST", "BYTES", "AT MOST"], &rows);
    text.push('\n');
    text.push_str(&table::pairs(&bounds(retention.unwrap_or_default())));
    text
}

fn row(entry: &v1::ContextUsageEntry) -> Vec<String> {
    let v1::ContextUsageEntry { kind: _, count, count_max, bytes: size, bytes_max, is_estimated } = entry;
    let about = if *is_estimated && *size > 0 { "~" } else { "" };
    let is_counted = !matches!(entry.kind(), Kind::Blobs);
    let has_bytes = !matches!(entry.kind(), Kind::JobsOpen);
    let shown = |is_shown: bool, text: String| if is_shown { text } else { "-".to_owned() };
    vec![
        name(entry.kind()).to_owned(),
        shown(is_counted, count.to_string()),
        shown(*count_max > 0, count_max.to_string()),
        shown(has_bytes, format!("{about}{}", bytes(*size))),
        shown(*bytes_max > 0, bytes(*bytes_max)),
    ]
}

const fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Unspecified => "other",
        Kind::FlowsOpen => "open flows",
        Kind::JobsOpen => "jobs of open flows",
        Kind::FlowsEnded => "ended flows",
        Kind::JobsStored => "stored jobs",
        Kind::Messages => "messages",
        Kind::Events => "events",
        Kind::Audit => "audit entries",
        Kind::Blobs => "blobs",
        Kind::Runners => "runners",
        Kind::Requests => "request ids",
    }
}

/// Bounds in force.
fn bounds(retention: v1::ContextRetention) -> Vec<(&'static str, String)> {
    let v1::ContextRetention {
        ended_flow_keep_secs,
        ended_flows_max,
        ended_flow_bytes_max,
        message_keep_secs,
        messages_done_max,
        events_keep_secs,
    } = retention;
    let length = |secs: u64| time::duration(Duration::from_secs(secs));
    let flows =
        format!("{}, {ended_flows_max}, {}", length(ended_flow_keep_secs), bytes(ended_flow_bytes_max));
    vec![
        ("ended flows kept", flows),
        ("messages kept", format!("{}, {messages_done_max}", length(message_keep_secs))),
        ("events kept", length(events_keep_secs)),
    ]
}

/// Bounds that a context has set itself, by the names with which they are set.
pub(super) fn own_bounds(retention: v1::ContextRetention) -> Vec<(&'static str, String)> {
    let v1::ContextRetention {
        ended_flow_keep_secs,
        ended_flows_max,
        ended_flow_bytes_max,
        message_keep_secs,
        messages_done_max,
        events_keep_secs,
    } = retention;
    let length = |secs: u64| (secs > 0).then(|| time::duration(Duration::from_secs(secs)));
    let number = |number: u64| (number > 0).then(|| number.to_string());
    let all = [
        ("ended-flow-keep-secs", length(ended_flow_keep_secs)),
        ("ended-flows-max", number(ended_flows_max)),
        ("ended-flow-bytes-max", (ended_flow_bytes_max > 0).then(|| bytes(ended_flow_bytes_max))),
        ("message-keep-secs", length(message_keep_secs)),
        ("messages-done-max", number(messages_done_max)),
        ("events-keep-secs", length(events_keep_secs)),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// `512 B`, `3.4 KiB`, `12 MiB`, `1.0 GiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut tenths = u128::from(count) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    match tenths {
        0..100 => format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit]),
        _ => format!("{} {}", tenths / 10, UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_two_digits_or_more() {
        for (count, text) in
            [(0, "0 B"), (1023, "1023 B"), (3500, "3.4 KiB"), (1 << 30, "1.0 GiB"), (100 << 20, "100 MiB")]
        {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn every_kind_has_a_row() {
        let ended = v1::ContextUsageEntry {
            kind: Kind::FlowsEnded.into(),
            count: 7,
            count_max: 100,
            bytes: 7000,
            bytes_max: 1 << 20,
            is_estimated: true,
        };
        let blobs = v1::ContextUsageEntry { kind: Kind::Blobs.into(), bytes: 5, ..Default::default() };
        let retention = v1::ContextRetention { ended_flow_keep_secs: 86_400, ..Default::default() };
        let text = context_usage(&v1::GetContextUsageResponse {
            entries: vec![ended, blobs],
            bytes: 7005,
            bytes_max: (1 << 20) + 5,
            retention: Some(retention),
        });
        assert!(text.contains("ended flows  7      100      ~6.8 KiB  1.0 MiB"), "{text}");
        assert!(text.contains("blobs        -      -        5 B       -"), "{text}");
        assert!(text.contains("1 d 0 h"), "{text}");
    }
}
