//! A sender's signature over chat and mail.

use ::envelope::actor::{DIRECT_MESSAGE_TYPE, check_direct_message};
use ::envelope::{Envelope, Refusal};
use bytes::Bytes;
use model::{BlobHash, DirectMessage};

use super::NOW;
use crate::input::{Input, join};
use crate::keys::key;
use crate::{Target, Verdict, check_refusal};

/// The reader of signatures over mail.
pub const TARGET: Target = Target { name: "letter_signature", run, seeds, dictionary: DICTIONARY };

const DICTIONARY: &[&str] = &[
    "\"id\":\"",
    "\"to\":\"",
    "\"target_context\":",
    "\"type\":\"",
    "\"format\":\"",
    "\"topic\":\"",
    "\"text\":\"",
    "\"text_sha256\":\"",
    "\"expires\":",
    "\"origin\":",
    "\"from\":\"",
    "\"created_at\":",
    "\"expires_at\":",
    "\"signature\":",
    "chat",
    "mail",
    "html",
    "text",
    "md",
    "1800000000.5",
    "null",
    "{}",
    ",",
];
/// Content of the message, which stands in no refusal.
const SECRET: &str = "what-is-between-the-two";

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    let way = input.choice(4);
    let (statement, message) = (input.part(), input.part());
    let Ok(mut message) = serde_json::from_slice::<DirectMessage>(message) else { return Verdict::Refused };
    if way > 0 {
        let envelope =
            Envelope::sign(DIRECT_MESSAGE_TYPE, Bytes::copy_from_slice(statement), key(0)).to_json();
        message.signature = Some(String::from_utf8_lossy(&envelope).into_owned());
    }
    if way > 1 {
        message.from = key(0).verifying_key().to_string();
    }
    let json = serde_json::to_string(&message).expect("a letter is JSON");
    let again: DirectMessage = serde_json::from_str(&json).expect("as it was written");
    assert_eq!(again, message, "a letter changes on its way");
    let checked = match check_direct_message(&message, NOW) {
        Err(refusal) => {
            let secrets: &[&str] = if matches!(refusal, Refusal::OtherContent(_)) { &[SECRET] } else { &[] };
            check_refusal(&refusal.to_string(), 512, secrets);
            return Verdict::Refused;
        }
        // Without a signature there is nothing to be sure of.
        Ok(None) => return Verdict::Refused,
        Ok(Some(checked)) => checked,
    };
    assert_eq!(checked.signer.to_string(), message.from);
    assert!(checked.expires > NOW, "it was over");
    for other in [
        DirectMessage { text: format!("{} ", message.text), ..message.clone() },
        DirectMessage { topic: format!("{} ", message.topic), ..message.clone() },
        DirectMessage { to: format!("{} ", message.to), ..message.clone() },
        DirectMessage { from: key(1).verifying_key().to_string(), ..message },
    ] {
        assert!(check_direct_message(&other, NOW).is_err(), "{other:?} was not signed");
    }
    Verdict::Accepted
}

fn seeds() -> Vec<Vec<u8>> {
    let (from, to) = (key(0).verifying_key(), key(1).verifying_key());
    let hash = BlobHash::of(SECRET.as_bytes());
    let statement = format!(
        r#"{{"id":"00000000000000000000000000000009","to":"{to}","type":"chat","format":"md","topic":"t","text_sha256":"{hash}","expires":1800003600000}}"#
    );
    let origin = format!(
        r#"{{"coordinator":"{to}","context_uid":"00000000000000000000000000000007","caller_id":3,"message_id":1}}"#
    );
    let message = format!(
        r#"{{"origin":{origin},"from":"{from}","to":"{to}","type":"chat","format":"md","topic":"t","text":"{SECRET}","created_at":1800000000.5,"expires_at":1800003600}}"#
    );
    let (statement_2, message_2) = (
        statement.replace("\"type\"", "\"target_context\":4,\"type\""),
        message.replace("\"type\"", "\"target_context\":4,\"type\""),
    );
    vec![
        join(&[1], &[statement.clone(), message.clone()]),
        join(&[2], &[statement_2, message_2]),
        join(&[2], &[statement.clone(), message.replace("chat", "mail")]),
        join(&[0], &[String::new(), message.clone()]),
        join(&[3], &[statement.replace("1800003600000", "1700000000000"), message]),
    ]
}
