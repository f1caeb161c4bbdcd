//! What an engine that panicked says of it.

use std::panic::PanicHookInfo;
use std::sync::{Mutex, PoisonError};

/// The longest message that is kept.
const MESSAGE_CHARS_MAX: usize = 300;

static LAST: Mutex<String> = Mutex::new(String::new());

/// Keeps the message of a panic in place of printing it. Where in the source it happened is left out: a script's owner
/// has no use for paths of the machine that the program was built on.
pub(super) fn keep_messages() {
    std::panic::set_hook(Box::new(keep));
}

fn keep(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = text.unwrap_or("without a message").chars().take(MESSAGE_CHARS_MAX).collect();
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = message;
}

/// The message of the last panic.
pub(super) fn last_message() -> String {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
