//! Text on what followed from a request to change an instance.

use proto::v1;

use super::{below, fate, instance, or_dash, pairs, purpose, work};

/// A request that was made.
#[derive(Debug, Clone, Copy)]
pub struct SagaRequestRef<'a> {
    /// Id of the request.
    pub request_id: &'a str,
    /// True for a dry run, which only shows what would follow.
    pub dry_run: bool,
}

/// Describes what followed, or would follow.
#[must_use]
pub fn text(change: &v1::SagaChange, request: SagaRequestRef<'_>) -> String {
    let v1::SagaChange { saga, fate: _, ignored_reason, commands } = change;
    let mut rows = Vec::new();
    match saga {
        Some(saga) => rows.extend(instance::head(saga)),
        None => rows.push(("instance", "there is none".to_owned())),
    }
    rows.push(("request", fate(change.fate(), ignored_reason)));
    if request.dry_run {
        rows.push(("dry run", "nothing was changed: this is what would follow".to_owned()));
    } else {
        rows.push(("request id", request.request_id.to_owned()));
    }
    let ordered: Vec<_> = commands.iter().map(row).collect();
    [pairs(rows), below(&["ORDERED", "STEP", "BRANCH", "FOR", "WHAT"], &ordered)].concat()
}

/// A command in one row: its id, where it comes from, and what it orders.
pub(super) fn row(command: &v1::SagaCommand) -> Vec<String> {
    let v1::SagaCommand { command_id, step, branch, effect, aggregate_type, command_type, .. } = command;
    let cancels = &command.cancels_command_id;
    let what = match cancels.as_str() {
        "" => work(effect, aggregate_type, command_type),
        cancels if effect.is_empty() => format!("takes back {cancels}"),
        cancels => format!("takes back {cancels} of {effect}"),
    };
    vec![
        command_id.clone(),
        or_dash(step),
        or_dash(branch),
        if cancels.is_empty() { purpose(command.purpose()) } else { "-" }.to_owned(),
        what,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed() -> v1::SagaChange {
        let mut saga = v1::Saga {
            saga: "order".into(),
            correlation_id: "o\u{1b}[31m-1\n".into(),
            step: "reserve".into(),
            revision: 1,
            ..Default::default()
        };
        saga.set_status(v1::SagaStatus::Running);
        let mut command = v1::SagaCommand {
            command_id: "018f".into(),
            step: "reserve".into(),
            branch: "reserve".into(),
            effect: "payment-reserve".into(),
            ..Default::default()
        };
        command.set_purpose(v1::SagaCommandPurpose::Forward);
        let mut change = v1::SagaChange { saga: Some(saga), commands: vec![command], ..Default::default() };
        change.set_fate(v1::SagaInputFate::Applied);
        change
    }

    #[test]
    fn a_change_shows_the_status_of_the_instance_and_its_ordered_effects() {
        let text = text(&changed(), SagaRequestRef { request_id: "5b", dry_run: false });
        let expected = "\
saga         order
correlation  o\\x1b[31m-1\\n
status       running at reserve
revision     1
request      applied
request id   5b

ORDERED  STEP     BRANCH   FOR       WHAT
018f     reserve  reserve  the step  payment-reserve
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_dry_run_and_an_ignored_request_are_shown_as_such() {
        let text = text(&changed(), SagaRequestRef { request_id: "5b", dry_run: true });
        assert!(text.contains("dry run      nothing was changed") && !text.contains("5b"), "{text}");
        let mut none = v1::SagaChange { ignored_reason: "no_instance".into(), ..Default::default() };
        none.set_fate(v1::SagaInputFate::Ignored);
        let text = super::text(&none, SagaRequestRef { request_id: "5b", dry_run: false });
        assert!(text.contains("instance    there is none\nrequest     ignored (no_instance)\n"), "{text}");
    }

    #[test]
    fn a_command_that_takes_another_back_names_it() {
        let command = v1::SagaCommand {
            cancels_command_id: "018e".into(),
            effect: "mail".into(),
            ..Default::default()
        };
        assert_eq!(row(&command)[3..], ["-".to_owned(), "takes back 018e of mail".to_owned()]);
        let command = v1::SagaCommand {
            aggregate_type: "Order".into(),
            command_type: "Cancel".into(),
            ..Default::default()
        };
        assert_eq!(row(&command)[4], "Order/Cancel");
    }
}
