//! Notices for people while the coordinator of an open stream is away.

use std::time::Duration;

use crate::failure::ApiCallError;

/// Counts consecutive failures of a stream that is reopened.
#[derive(Debug, Default)]
pub(super) struct OutageNotice {
    /// Failures in a row, without an answer between them.
    breaks: u32,
}

impl OutageNotice {
    /// Notes a failure, and returns the notice to print: at the second in a row, since the first is usually over before
    /// anyone notices.
    pub(super) fn on_failure(&mut self, error: &ApiCallError, patience: Duration) -> Option<String> {
        self.breaks = self.breaks.saturating_add(1);
        let secs = patience.as_secs();
        let line = || format!("the coordinator is away; retrying for {secs} s: {}", error.view);
        (self.breaks == 2).then(line)
    }

    /// Notes an answer, and returns the notice to print if the outage was reported.
    pub(super) fn on_response(&mut self) -> Option<&'static str> {
        (std::mem::take(&mut self.breaks) > 1).then_some("the coordinator is back")
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    #[test]
    fn only_a_lasting_outage_is_reported_and_only_once() {
        let mut absence = OutageNotice::default();
        let error = ApiCallError::from(Status::unavailable("cannot reach h:1"));
        let broke = |absence: &mut OutageNotice| absence.on_failure(&error, Duration::from_secs(60));
        assert_eq!(absence.on_response(), None);
        assert_eq!(broke(&mut absence), None);
        assert_eq!(absence.on_response(), None);
        let notices = [(); 4].map(|()| broke(&mut absence));
        let line = "the coordinator is away; retrying for 60 s: cannot reach h:1";
        assert_eq!(notices, [None, Some(line.to_owned()), None, None]);
        assert_eq!(absence.on_response(), Some("the coordinator is back"));
        assert_eq!(absence.on_response(), None);
    }
}
