//! Instances of sagas.

use model::Timestamp;
use proto::v1;

use super::{ago, below, change, json_below, moment, or_dash, pairs, purpose, short, status, until};
use crate::output::{labels, table};

/// Returns true when the instance has ended.
#[must_use]
pub fn is_ended(saga: &v1::Saga) -> bool {
    let ends = [
        v1::SagaStatus::Completed,
        v1::SagaStatus::Failed,
        v1::SagaStatus::Compensated,
        v1::SagaStatus::Killed,
    ];
    ends.contains(&saga.status())
}

/// A text as one word of a shell.
#[must_use]
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@%+,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", table::shown_whole(&text.replace('\'', "'\\''")))
}

/// Where an instance stands, such as `running at reserve, paused`.
fn stands(saga: &v1::Saga) -> String {
    let mut text = status(saga.status()).to_owned();
    if !saga.step.is_empty() {
        text.push_str(&format!(" at {}", saga.step));
    }
    for (is_so, suffix) in [(saga.paused, ", paused"), (saga.parked, ", parked")] {
        text.push_str(if is_so { suffix } else { "" });
    }
    text
}

/// Returns the rows that name an instance and give its status.
pub(super) fn head(saga: &v1::Saga) -> Vec<(&'static str, String)> {
    vec![
        ("saga", saga.saga.clone()),
        ("correlation", saga.correlation_id.clone()),
        ("status", stands(saga)),
        ("reason", saga.reason.clone()),
        ("revision", saga.revision.to_string()),
    ]
}

/// A list of instances.
#[must_use]
pub fn list(sagas: &[v1::Saga], now: Timestamp) -> String {
    let rows: Vec<_> = sagas
        .iter()
        .map(|saga| {
            let mut status = status(saga.status()).to_owned();
            for (is_so, suffix) in [(saga.paused, ", paused"), (saga.parked, ", parked")] {
                status.push_str(if is_so { suffix } else { "" });
            }
            vec![
                saga.saga.clone(),
                saga.correlation_id.clone(),
                status,
                or_dash(&saga.step),
                ago(now, saga.step_time.or(saga.end_time)),
                ago(now, saga.start_time),
                saga.reason.clone(),
            ]
        })
        .collect();
    table::render(&["SAGA", "CORRELATION", "STATUS", "STEP", "SINCE", "STARTED", "REASON"], &rows)
}

/// An instance in one line, as it is when it changes.
#[must_use]
pub fn line(saga: &v1::Saga) -> String {
    let reason = if saga.reason.is_empty() { String::new() } else { format!(": {}", saga.reason) };
    let line = format!(
        "{} saga {} {}: {}{reason}",
        moment(saga.update_time),
        saga.saga,
        quoted(&saga.correlation_id),
        stands(saga)
    );
    format!("{}\n", table::shown_whole(&line))
}

/// An instance with everything that is known of it.
#[must_use]
pub fn whole(answer: &v1::GetSagaResponse, now: Timestamp) -> String {
    let saga = answer.saga.clone().unwrap_or_default();
    let mut rows = head(&saga);
    let yes = |is_so: bool, text: &str| if is_so { text.to_owned() } else { String::new() };
    let stuck = answer.stuck.as_ref().map(|stuck| format!("{}: {}", purpose(stuck.purpose()), stuck.reason));
    let held = labels::count(usize::try_from(saga.held_count).unwrap_or(usize::MAX), "input", "inputs");
    rows.extend([
        ("stuck at", stuck.unwrap_or_default()),
        (
            "cancelled",
            yes(
                !answer.cancel_reason.is_empty(),
                &format!("once the pivot has ended: {}", answer.cancel_reason),
            ),
        ),
        ("pivot", yes(saga.past_pivot, "has succeeded: there is no way back")),
        ("held back", yes(saga.held_count > 0, &held)),
        ("dead letter", answer.dead_letter_key.clone()),
        ("run", yes(saga.run > 0, &saga.run.saturating_add(1).to_string())),
        ("version", format!("{} ({})", saga.version, short(&saga.definition_hash))),
        ("started", moment(saga.start_time)),
        ("at its step", yes(saga.step_time.is_some(), &format!("since {}", moment(saga.step_time)))),
        ("last input", yes(saga.end_time.is_none(), &moment(saga.update_time))),
        ("ended", moment(saga.end_time)),
    ]);
    let open: Vec<_> = answer.open_commands.iter().map(change::row).collect();
    let ended: Vec<_> = answer.ended_branches.iter().map(branch).collect();
    let undo: Vec<_> = answer
        .undo_stack
        .iter()
        .map(|undo| vec![undo.command_id.clone(), undo.step.clone(), undo.branch.clone()])
        .collect();
    let kept: Vec<_> = answer
        .kept_events
        .iter()
        .map(|kept| vec![kept.event_type.clone(), kept.revision.to_string()])
        .collect();
    let timers: Vec<_> = answer.timers.iter().map(|timer| own_timer(timer, now)).collect();
    [
        pairs(rows),
        below(&["WAITS FOR", "STEP", "BRANCH", "FOR", "WHAT"], &open),
        below(&["BRANCH", "ENDED", "RESULT"], &ended),
        below(&["TIMER", "RAISES", "DUE", ""], &timers),
        below(&["KEPT EVENT", "REVISION"], &kept),
        below(&["MAY BE UNDONE", "STEP", "BRANCH"], &undo),
        json_below("state", &answer.state_json),
    ]
    .concat()
}

fn branch(branch: &v1::SagaBranch) -> Vec<String> {
    let ended = match (branch.succeeded, branch.may_have_happened) {
        (true, _) => "succeeded",
        (false, true) => "did not succeed, and may have happened",
        (false, false) => "did not succeed",
    };
    vec![branch.name.clone(), ended.to_owned(), branch.result_json.clone()]
}

fn own_timer(timer: &v1::SagaTimer, now: Timestamp) -> Vec<String> {
    let with = if timer.of_step { "ends with its step" } else { "ends with the instance" };
    vec![
        timer.name.clone(),
        timer.event_type.clone(),
        format!("{}, {}", until(now, timer.due_time), moment(timer.due_time)),
        with.to_owned(),
    ]
}

/// A list of timers.
#[must_use]
pub fn timers(timers: &[v1::SagaTimer], now: Timestamp) -> String {
    let rows: Vec<_> = timers
        .iter()
        .map(|timer| {
            let v1::SagaTimer { saga, correlation_id, name, event_type, .. } = timer;
            vec![
                until(now, timer.due_time),
                moment(timer.due_time),
                saga.clone(),
                correlation_id.clone(),
                name.clone(),
                event_type.clone(),
            ]
        })
        .collect();
    table::render(&["DUE", "AT", "SAGA", "CORRELATION", "TIMER", "RAISES"], &rows)
}

/// Why an instance is where it is.
#[must_use]
pub fn explanation(answer: &v1::ExplainSagaResponse) -> String {
    let rows: Vec<_> = answer
        .findings
        .iter()
        .map(|finding| {
            let blocks = if finding.blocks { "blocks" } else { "-" };
            let mut found = finding.detail.clone();
            if finding.until_time.is_some() {
                found.push_str(&format!(" (until {})", moment(finding.until_time)));
            }
            vec![respect(finding.kind()).to_owned(), blocks.to_owned(), found]
        })
        .collect();
    let mut text = format!("{}\n", table::shown_whole(&answer.summary));
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&table::render_whole(&["ABOUT", "", "FOUND"], &rows));
    }
    text
}

/// In which respect an instance was looked at.
const fn respect(kind: v1::SagaFindingKind) -> &'static str {
    match kind {
        v1::SagaFindingKind::Unspecified => "other",
        v1::SagaFindingKind::Tenant => "tenant",
        v1::SagaFindingKind::Lane => "lane",
        v1::SagaFindingKind::Definition => "definition",
        v1::SagaFindingKind::Status => "status",
        v1::SagaFindingKind::DeadLetter => "dead letter",
        v1::SagaFindingKind::Pause => "pause",
        v1::SagaFindingKind::Event => "event",
        v1::SagaFindingKind::Timer => "timer",
        v1::SagaFindingKind::Command => "command",
        v1::SagaFindingKind::Effect => "effect",
        v1::SagaFindingKind::Source => "source",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Option<prost_types::Timestamp> {
        Some(prost_types::Timestamp { seconds, nanos: 0 })
    }

    fn saga() -> v1::Saga {
        let mut saga = v1::Saga {
            saga: "order".into(),
            correlation_id: "o 1".into(),
            step: "ship".into(),
            parked: true,
            held_count: 3,
            reason: "the label\u{202e} failed".into(),
            revision: 7,
            version: 2,
            definition_hash: "ab".repeat(32),
            start_time: at(1_800_000_000),
            step_time: at(1_800_000_060),
            update_time: at(1_800_000_060),
            ..Default::default()
        };
        saga.set_status(v1::SagaStatus::Stuck);
        saga
    }

    #[test]
    fn a_line_is_one_line_and_hides_nothing() {
        let text = line(&saga());
        assert_eq!(
            text,
            "2027-01-15 08:01:00 UTC saga order 'o 1': stuck at ship, parked: the label\\u{202e} failed\n"
        );
        let hostile = v1::Saga { correlation_id: "a\nb\u{1b}[2J".into(), ..saga() };
        assert_eq!(line(&hostile).lines().count(), 1);
        assert!(!line(&hostile).contains('\u{1b}'));
    }

    #[test]
    fn a_list_shows_how_long_an_instance_has_been_in_its_step() {
        let text = list(&[saga()], Timestamp::from_millis(1_800_000_120_000));
        assert!(text.starts_with("SAGA   CORRELATION  STATUS         STEP  SINCE"), "{text}");
        assert!(
            text.contains("order  o 1          stuck, parked  ship  1 min 00 s ago  2 min 00 s ago"),
            "{text}"
        );
    }

    #[test]
    fn an_instance_is_shown_with_what_it_waits_for() {
        let stuck = v1::SagaStuck { purpose: v1::SagaCommandPurpose::Forward.into(), reason: "402".into() };
        let answer = v1::GetSagaResponse {
            saga: Some(saga()),
            state_json: r#"{"amount_cents":990,"email":"a\u001b[31m@b"}"#.into(),
            stuck: Some(stuck),
            kept_events: vec![v1::SagaKeptEvent { revision: 4, event_type: "PaymentCaptured".into() }],
            timers: vec![v1::SagaTimer {
                name: "pay-by".into(),
                event_type: "PaymentTimedOut".into(),
                due_time: at(1_800_000_180),
                of_step: true,
                ..Default::default()
            }],
            dead_letter_key: "d-1".into(),
            ..Default::default()
        };
        let text = whole(&answer, Timestamp::from_millis(1_800_000_120_000));
        for part in [
            "status       stuck at ship, parked\n",
            "stuck at     the step: 402\n",
            "held back    3 inputs\n",
            "dead letter  d-1\n",
            "version      2 (abababababab)\n",
            "pay-by  PaymentTimedOut  in 1 min 00 s, 2027-01-15 08:03:00 UTC  ends with its step\n",
            "PaymentCaptured  4\n",
            "\nstate\n{\n  \"amount_cents\": 990,\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\u{1b}') && !text.contains("pivot"), "{text}");
    }

    #[test]
    fn shell_arguments_are_quoted_where_needed() {
        for (text, expected) in
            [("order-7", "order-7"), ("a b", "'a b'"), ("it's", "'it'\\''s'"), ("", "''"), ("$(x)", "'$(x)'")]
        {
            assert_eq!(quoted(text), expected);
        }
    }

    #[test]
    fn a_finding_shows_its_end_time() {
        let mut finding = v1::SagaFinding {
            blocks: true,
            detail: "waits for PaymentCaptured".into(),
            until_time: at(1_800_000_000),
            ..Default::default()
        };
        finding.set_kind(v1::SagaFindingKind::Event);
        let answer = v1::ExplainSagaResponse {
            summary: "order o-1 waits".into(),
            findings: vec![finding],
            ..Default::default()
        };
        let expected = "order o-1 waits\n\nABOUT          FOUND\nevent  blocks  waits for PaymentCaptured (until 2027-01-15 08:00:00 UTC)\n";
        assert_eq!(explanation(&answer), expected);
    }
}
