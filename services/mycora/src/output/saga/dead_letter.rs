//! Dead letters.

use proto::v1;

use super::{fate, json_below, moment, or_dash, pairs, timeline};
use crate::output::{labels, table};

/// A list of dead letters.
#[must_use]
pub fn list(letters: &[v1::SagaDeadLetter]) -> String {
    let rows: Vec<_> = letters
        .iter()
        .map(|letter| {
            vec![
                letter.key.clone(),
                whose(letter),
                or_dash(&letter.correlation_id),
                letter.code.clone(),
                if letter.parks { letter.held_count.to_string() } else { "-".to_owned() },
                moment(letter.time),
                letter.detail.clone(),
            ]
        })
        .collect();
    table::render(&["LETTER", "FOR", "CORRELATION", "CODE", "HELD BACK", "STORED", "WHY"], &rows)
}

fn whose(letter: &v1::SagaDeadLetter) -> String {
    match (letter.saga.as_str(), letter.effect.as_str()) {
        ("", effect) => format!("effect {effect}"),
        (saga, _) => format!("saga {saga}"),
    }
}

/// A dead letter with its input.
#[must_use]
pub fn whole(letter: &v1::SagaDeadLetter) -> String {
    let held = labels::count(usize::try_from(letter.held_count).unwrap_or(usize::MAX), "input", "inputs");
    let rows = vec![
        ("letter", letter.key.clone()),
        ("for", whose(letter)),
        ("correlation", letter.correlation_id.clone()),
        ("code", letter.code.clone()),
        ("why", letter.detail.clone()),
        (
            "parks",
            if letter.parks {
                format!("its instance: {held} held back behind it")
            } else {
                "nobody".to_owned()
            },
        ),
        ("stored", moment(letter.time)),
        ("input", letter.input.as_ref().map(timeline::came).unwrap_or_default()),
    ];
    let payload = letter.input.as_ref().map(timeline::payload).unwrap_or_default();
    let message = match &letter.message[..] {
        [] => String::new(),
        bytes => format!("\nmessage\n{}\n", table::shown_whole(&String::from_utf8_lossy(bytes))),
    };
    [pairs(rows), json_below("payload", payload), message].concat()
}

/// Lists the outcome for letters that were redriven.
#[must_use]
pub fn redrives(redrives: &[v1::SagaRedrive], request_id: &str) -> String {
    let rows: Vec<_> = redrives
        .iter()
        .map(|redrive| {
            let became = match redrive.fate() {
                v1::SagaInputFate::Unspecified => "left out".to_owned(),
                v1::SagaInputFate::DeadLetter => "failed again, and stays".to_owned(),
                other => fate(other, ""),
            };
            vec![
                redrive.key.clone(),
                became,
                or_dash(&redrive.dead_letter_key),
                redrive.held_count.to_string(),
                redrive.detail.clone(),
            ]
        })
        .collect();
    let heading = ["LETTER", "BECAME", "IN FRONT NOW", "HELD BACK", "WHY"];
    format!("{}\nrequest {request_id}\n", table::render(&heading, &rows))
}

/// How much was removed.
#[must_use]
pub fn purged(answer: &v1::PurgeSagaDeadLettersResponse, request_id: &str) -> String {
    let count = |number: u32, one, many| labels::count(number as usize, one, many);
    let letters = count(answer.letter_count, "letter is", "letters are");
    let held = count(answer.held_count, "input", "inputs");
    format!("{letters} removed, with {held} behind (request {request_id})\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_shows_its_input_with_control_characters_escaped() {
        let input = v1::SagaEventInput {
            event_id: "e-1".into(),
            event_type: "PaymentCaptured".into(),
            event_json: "{\"data\":{}}".into(),
            ..Default::default()
        };
        let letter = v1::SagaDeadLetter {
            key: "s:acme:order:0/o-1/1".into(),
            saga: "order".into(),
            correlation_id: "o-1".into(),
            code: "FORMULA".into(),
            detail: "no field `amount`\u{1b}[2J".into(),
            parks: true,
            held_count: 2,
            input: Some(v1::SagaInput { time: None, input: Some(v1::saga_input::Input::Event(input)) }),
            ..Default::default()
        };
        let text = whole(&letter);
        assert!(text.contains("why          no field `amount`\\x1b[2J\n"), "{text}");
        assert!(text.contains("parks        its instance: 2 inputs held back behind it\n"), "{text}");
        assert!(
            text.contains("input        event PaymentCaptured\n") && text.contains("\npayload\n{\n"),
            "{text}"
        );
        let stray = v1::SagaDeadLetter {
            effect: "mail".into(),
            message: b"\xff\x1b".to_vec().into(),
            ..Default::default()
        };
        assert!(whole(&stray).ends_with("\nmessage\n\u{fffd}\\x1b\n"), "{}", whole(&stray));
        assert!(list(&[letter, stray]).contains("effect mail"));
    }

    #[test]
    fn a_redrive_that_failed_again_is_shown_with_its_reason() {
        let mut again = v1::SagaRedrive {
            key: "k-1".into(),
            detail: "no field".into(),
            dead_letter_key: "k-1".into(),
            held_count: 2,
            ..Default::default()
        };
        again.set_fate(v1::SagaInputFate::DeadLetter);
        let text = redrives(&[again, v1::SagaRedrive { key: "k-2".into(), ..Default::default() }], "5b");
        assert!(
            text.contains("k-1     failed again, and stays  k-1           2          no field\n"),
            "{text}"
        );
        assert!(text.contains("k-2     left out                 -             0\n"), "{text}");
        let purged = purged(&v1::PurgeSagaDeadLettersResponse { letter_count: 1, held_count: 2 }, "5b");
        assert_eq!(purged, "1 letter is removed, with 2 inputs behind (request 5b)\n");
    }
}
