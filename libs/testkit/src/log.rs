//! The log of a test that runs on one thread.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::subscriber::DefaultGuard;

/// Log of this thread, from its beginning until it is dropped.
#[derive(Debug)]
pub struct TestLog {
    text: TestLogBuffer,
    _logged: DefaultGuard,
}

#[derive(Debug, Clone, Default)]
struct TestLogBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for TestLogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TestLog {
    /// Begins.
    #[must_use]
    pub fn of_this_thread() -> Self {
        let text = TestLogBuffer::default();
        let writer = text.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        Self { text, _logged: tracing::subscriber::set_default(subscriber) }
    }

    /// Everything that was logged.
    #[must_use]
    pub fn text(&self) -> String {
        let text = self.text.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Lines that have all of these parts.
    #[must_use]
    pub fn lines(&self, parts: &[&str]) -> Vec<String> {
        let has_all = |line: &&str| parts.iter().all(|part| line.contains(part));
        self.text().lines().filter(has_all).map(str::to_owned).collect()
    }
}
