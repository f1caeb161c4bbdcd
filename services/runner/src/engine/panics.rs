//! Messages of panics in an engine.

use std::panic::PanicHookInfo;
use std::sync::{Mutex, PoisonError};

/// The longest message that is kept.
const MESSAGE_CHARS_MAX: usize = 300;

static LAST: Mutex<String> = Mutex::new(String::new());

/// Keeps the message of a panic instead of printing it. The source location is left out: a script's owner
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

#[cfg(test)]
mod tests {
    use super::super::caught;
    use super::*;
    use crate::wire::EngineScriptEnd;

    const ROLE: &str = "MYCORA_TEST_PANICS";

    /// Does nothing unless the test below starts this program anew for it, since the message of every panic is kept.
    #[test]
    fn a_process_that_panics() {
        if std::env::var_os(ROLE).is_none() {
            return;
        }
        keep_messages();
        let mut engine = rhai::Engine::new();
        engine.register_fn("breaks", |times: i64| -> i64 { panic!("it broke {times} times") });
        let run = |script: &str| {
            caught(|| match engine.eval::<i64>(script) {
                Ok(code) => {
                    EngineScriptEnd::Exited { code: i32::try_from(code).unwrap_or(-1), result: [].into() }
                }
                Err(error) => EngineScriptEnd::Failed(error.to_string()),
            })
        };
        assert_eq!(run("breaks(7)"), EngineScriptEnd::Panicked("it broke 7 times".to_owned()));
        assert_eq!(
            run("[1].map(|x| breaks(x))[0]"),
            EngineScriptEnd::Panicked("it broke 1 times".to_owned())
        );
        assert_eq!(
            run("try { breaks(8) } catch { 3 }"),
            EngineScriptEnd::Panicked("it broke 8 times".to_owned())
        );
        assert_eq!(run("2"), EngineScriptEnd::Exited { code: 2, result: [].into() });
        let long = caught(|| panic!("{}", "x".repeat(10_000)));
        assert!(matches!(long, EngineScriptEnd::Panicked(text) if text.len() == MESSAGE_CHARS_MAX));
        println!("caught");
    }

    #[test]
    fn a_panic_is_caught_with_its_message_alone() {
        let mut again = std::process::Command::new(std::env::current_exe().expect("this program"));
        let test = "engine::panics::tests::a_process_that_panics";
        let output = again.args(["--exact", test, "--nocapture"]).env(ROLE, "1").output();
        let output = output.expect("it is started");
        assert!(String::from_utf8_lossy(&output.stdout).contains("caught"), "{output:?}");
        assert!(output.status.success(), "{output:?}");
    }
}
