//! Attempts, as their machine reports them.

use proto::convert::time as wire_time;
use proto::v1;

use super::{labels, summary, table, time};

/// Where an attempt stands, in lower case.
#[must_use]
pub const fn state(state: v1::AttemptState) -> &'static str {
    match state {
        v1::AttemptState::Unspecified => "unknown",
        v1::AttemptState::Queued => "queued",
        v1::AttemptState::Started => "running",
        v1::AttemptState::Finished => "completed",
        v1::AttemptState::Error => "failed",
        v1::AttemptState::Timeout => "timeout",
        v1::AttemptState::Stopped => "stopped",
        v1::AttemptState::Lost => "lost",
        v1::AttemptState::Returned => "returned",
    }
}

/// How an attempt ended, or where it stands, in one line.
#[must_use]
pub fn outcome(attempt: &v1::Attempt) -> String {
    let mut text = format!("{}: {}", attempt.job_key, state(attempt.state()));
    if let (Some(start), Some(end)) = (attempt.start_time, attempt.end_time) {
        let ran = wire_time::from_wire(end).since(wire_time::from_wire(start));
        text.push_str(&format!(" after {}", time::duration(ran)));
    }
    if let Some(reason) = &attempt.reason {
        text.push_str(&format!(": {}", labels::reason(reason)));
    }
    text
}

/// All that is known of an attempt.
#[must_use]
pub fn whole(attempt: &v1::Attempt) -> String {
    let v1::Attempt {
        job_key,
        state: _,
        coordinator,
        instance,
        start_time,
        end_time,
        exit_code,
        reason,
        result,
        outputs,
        output_bytes,
    } = attempt;
    let from = if coordinator.is_empty() { "an operator, with `mycora attempt run`" } else { coordinator };
    let mut pairs = vec![
        ("attempt", job_key.clone()),
        ("state", state(attempt.state()).to_owned()),
        ("sent by", from.to_owned()),
    ];
    if !instance.is_empty() {
        pairs.push(("instance", instance.clone()));
    }
    let times = [("started", start_time), ("ended", end_time)];
    pairs.extend(
        times.into_iter().filter_map(|(name, at)| Some((name, time::utc(wire_time::from_wire((*at)?))))),
    );
    if let Some(code) = exit_code {
        pairs.push(("exit code", code.to_string()));
    }
    if let Some(reason) = reason {
        pairs.push(("reason", table::shown_whole(&labels::reason(reason))));
    }
    pairs.push((
        "printed",
        labels::count(usize::try_from(*output_bytes).unwrap_or(usize::MAX), "byte", "bytes"),
    ));
    let mut text = table::pairs(&pairs);
    if !result.is_empty() {
        text.push('\n');
        text.push_str(&summary::result(result));
    }
    if !outputs.is_empty() {
        let rows: Vec<_> =
            outputs.iter().map(|(name, blob)| vec![name.clone(), blob.size.to_string()]).collect();
        text.push('\n');
        text.push_str(&table::render(&["OUTPUT", "BYTES"], &rows));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_shows_how_it_ended() {
        let mut attempt = v1::Attempt {
            job_key: "k".into(),
            start_time: Some(wire_time::to_wire(model::Timestamp::from_millis(1000))),
            end_time: Some(wire_time::to_wire(model::Timestamp::from_millis(3000))),
            exit_code: Some(3),
            reason: Some(v1::Reason { code: "EXIT_CODE".into(), detail: "exit code 3".into() }),
            output_bytes: 1,
            ..Default::default()
        };
        attempt.set_state(v1::AttemptState::Error);
        assert_eq!(outcome(&attempt), "k: failed after 2.0 s: exit code 3");
        let text = whole(&attempt);
        assert!(text.contains("sent by    an operator, with `mycora attempt run`\n"), "{text}");
        assert!(text.contains("exit code  3\n") && text.contains("printed    1 byte\n"), "{text}");
        assert!(!text.contains("instance"), "{text}");
    }
}
