//! The readers.

pub mod archive_frame;
pub mod engine_frame;
pub mod envelope;
pub mod expression;
pub mod flow_file;
pub mod frame;
pub mod job_signature;
pub mod json_rpc;
pub mod letter_signature;
pub mod page_token;
pub mod queue_record;
pub mod raw_jobs;
pub mod said;
pub mod script;
pub mod storage_record;
pub mod succession;
pub mod template;
pub mod token;

use model::Timestamp;

use crate::Target;

/// All of them.
pub const TARGETS: &[Target] = &[
    token::TARGET,
    envelope::TARGET,
    said::TARGET,
    succession::TARGET,
    job_signature::TARGET,
    letter_signature::TARGET,
    page_token::TARGET,
    flow_file::TARGET,
    template::TARGET,
    expression::TARGET,
    json_rpc::TARGET,
    frame::TARGET,
    storage_record::TARGET,
    raw_jobs::TARGET,
    queue_record::TARGET,
    engine_frame::TARGET,
    script::TARGET,
    archive_frame::TARGET,
];

/// When everything is read.
const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// Changes one character of a text into another of base64's alphabet; `number` selects the position and the character.
fn with_another_character(text: &str, number: u16) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut bytes = text.as_bytes().to_vec();
    let at = usize::from(number) % bytes.len().max(1);
    if let Some(byte) = bytes.get_mut(at) {
        let new = ALPHABET[usize::from(number) / 7 % ALPHABET.len()];
        *byte = if *byte == new { b'.' } else { new };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
