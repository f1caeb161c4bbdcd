//! Effect of a panic on the process of a service.

/// Ends the process at the first panic in it, whichever thread or task that is in, once it was logged. For processes that
/// serve; to be called when there is a log.
///
/// Programs unwind, so that the engine of embedded scripts can catch what a script brings about and end that script alone. A
/// service has no such place: what panicked may have left a lock, or half a change, behind, and others would go on with it.
pub fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        tracing::error!(%panic, "the process ends: it panicked");
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    const ROLE: &str = "MYCORA_TEST_PANICS";

    /// Does nothing unless the test below starts this program again for it.
    #[test]
    fn a_process_that_panics() {
        if std::env::var_os(ROLE).is_some() {
            abort_on_panic();
            let task = std::thread::spawn(|| panic!("it broke"));
            // Without the hook the panic would be caught here.
            assert!(task.join().is_err());
        }
    }

    #[test]
    fn a_panic_in_any_thread_ends_the_process() {
        let mut again = Command::new(std::env::current_exe().expect("this program"));
        again.args(["--exact", "panics::tests::a_process_that_panics", "--nocapture"]).env(ROLE, "1");
        let output = again.output().expect("it is started");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(printed.contains("it broke"), "{printed}");
        assert_eq!(output.status.signal(), Some(6), "{output:?}");
    }
}
