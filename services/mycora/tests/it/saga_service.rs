//! Commands about sagas against the service itself: `mycora up --saga`, over its private NATS server.

use serde_json::Value;

use crate::detached::DetachedFixture;
use crate::{stderr, stdout};

/// A saga that orders nothing: a caller approves it, or it times out.
pub(crate) const APPROVAL: &str = "\
kind: Saga
name: approval
version: 1
state: { subject: text, by: optional text }
correlate: event.data.subject
start: { set: { subject: \"${{ event.data.subject }}\" }, goto: wait }
steps:
  wait:
    timers: { too-late: { after: 1h, raise: TooLate } }
    on:
      Approved: { set: { by: \"${{ event.data.by }}\" }, end: completed }
      Refused: { compensate: refused }
      TooLate: { end: failed }
";

/// A suite with sagas, and a caller with nothing but its profile.
pub(crate) struct SagaSuiteFixture(pub(crate) DetachedFixture);

impl SagaSuiteFixture {
    fn start() -> Self {
        let place = DetachedFixture::new();
        std::fs::write(place.dir.path().join("approval.yaml"), APPROVAL).expect("written");
        Self::start_in(place, &[])
    }

    /// Starts one in a directory, with these flags as well.
    pub(crate) fn start_in(place: DetachedFixture, flags: &[&str]) -> Self {
        let suite = Self(place);
        let up = ["up", "--data", ".mycora", "--saga", "--no-supervisor", "--detach"];
        let up = suite.0.mycora(&[&up[..], flags].concat());
        assert!(up.status.success(), "{}\n{}", stdout(&up), stderr(&up));
        suite
    }

    pub(crate) fn run_command(&self, arguments: &[&str], code: i32) -> (String, String) {
        let arguments = [&["saga"][..], arguments, &["--config", ".mycora/client.toml"]].concat();
        let output = self.0.mycora(&arguments);
        let outputs = (stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {outputs:?}");
        outputs
    }

    pub(crate) fn text(&self, arguments: &[&str]) -> String {
        self.run_command(arguments, 0).0
    }

    pub(crate) fn document(&self, arguments: &[&str]) -> Value {
        let text = self.text(&[arguments, &["--output", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// A start of the next instance, with its data.
    fn start_instance(&self, correlation: &str) -> String {
        let data = format!(r#"{{"subject": "{correlation}"}}"#);
        self.text(&["start", "approval", correlation, "--data", &data])
    }
}

#[test]
fn an_instance_is_started_looked_at_and_ended() {
    let suite = SagaSuiteFixture::start();
    suite.run_command(&["list"], 0);
    assert_eq!(
        suite.text(&["validate", "approval.yaml", "--remote"]),
        suite.text(&["validate", "approval.yaml"])
    );
    let applied = suite.text(&["apply", "approval.yaml"]);
    assert!(applied.starts_with("the saga `approval`, version 1 ("), "{applied}");
    let document = suite.document(&["definitions", "--in-force"]);
    assert_eq!(document["definitions"][0]["appliedByTenant"], true, "{document}");
    assert!(suite.text(&["definition", "approval", "--manifest"]).starts_with("{\"kind\": \"Saga\""));

    let started = suite.start_instance("a-1");
    assert!(started.contains("status       running at wait\nrevision     1\n"), "{started}");
    let shown = suite.document(&["show", "approval", "a-1"]);
    assert_eq!(
        (&shown["saga"]["tenantId"], &shown["saga"]["step"]),
        (&"1".into(), &"wait".into()),
        "{shown}"
    );
    assert_eq!(shown["stateJson"], r#"{"by":null,"subject":"a-1"}"#);
    let (_, there) = suite.run_command(&["start", "approval", "a-1", "--data", r#"{"subject": "a-1"}"#], 1);
    assert!(there.contains("`mycora saga show SAGA CORRELATION`"), "{there}");
    let timers = suite.text(&["timers", "approval"]);
    assert!(timers.contains("too-late") && timers.contains("in 59 min"), "{timers}");
    let explained = suite.text(&["explain", "approval", "a-1"]);
    assert!(explained.contains("Approved"), "{explained}");
    let graph = suite.text(&["graph", "approval", "a-1"]);
    assert!(graph.contains("\nwait [here]\n") && graph.contains("  Approved → :completed\n"), "{graph}");
    let listed = suite.text(&["list", "--status", "running"]);
    assert!(listed.contains("approval  a-1"), "{listed}");

    let sent = suite.text(&["send", "approval", "a-1", "Approved", "--data", r#"{"by": "ann"}"#]);
    assert!(sent.contains("status       completed"), "{sent}");
    let watched = suite.text(&["watch", "approval", "a-1"]);
    assert!(
        watched.contains("saga approval a-1: completed") && watched.contains("\"by\": \"ann\""),
        "{watched}"
    );
    let timeline = suite.text(&["timeline", "approval", "a-1"]);
    let rows: Vec<_> = timeline.lines().skip(1).collect();
    assert!(rows[0].contains("  start  ") && rows[0].contains("running at wait"), "{timeline}");
    assert!(rows[1].contains("send Approved") && rows[1].contains("completed"), "{timeline}");
    let journal = suite.text(&["timeline", "approval", "a-1", "--journal"]);
    std::fs::write(suite.0.dir.path().join("a-1.json"), journal).expect("written");
    suite.run_command(&["replay-verify", "a-1.json"], 0);
}

#[test]
fn an_instance_is_steered_by_hand() {
    let suite = SagaSuiteFixture::start();
    suite.text(&["apply", "approval.yaml"]);
    suite.start_instance("b-1");
    let paused = suite.text(&["pause", "approval", "b-1"]);
    assert!(paused.contains("running at wait, paused"), "{paused}");
    let (_, again) = suite.run_command(&["pause", "approval", "b-1"], 1);
    assert!(again.contains("`mycora saga resume`"), "{again}");
    let held = suite.text(&["send", "approval", "b-1", "Approved", "--data", r#"{"by": "ann"}"#]);
    assert!(held.contains("request      held back"), "{held}");
    suite.start_instance("b-2");
    let cancel = ["cancel", "approval", "b-2", "--reason", "a test"];
    let dry = suite.text(&[&cancel[..], &["--dry-run"]].concat());
    assert!(dry.contains("dry run      nothing was changed") && dry.contains("compensated"), "{dry}");
    let shown = suite.document(&["show", "approval", "b-2"]);
    assert_eq!(shown["saga"]["status"], "SAGA_STATUS_RUNNING", "{shown}");
    let (_, other) = suite.run_command(&[&cancel[..], &["--expect-revision", "7"]].concat(), 1);
    assert!(other.contains("revision"), "{other}");
    let (printed, _) = suite.run_command(&[&cancel[..], &["--watch"]].concat(), 1);
    assert!(printed.contains("compensated") && printed.contains("a test"), "{printed}");

    suite.run_command(&["kill", "approval", "b-1", "--reason", "over"], 2);
    let killed = suite.document(&["kill", "approval", "b-1", "--reason", "over", "--yes"]);
    assert_eq!(killed["change"]["saga"]["status"], "SAGA_STATUS_KILLED", "{killed}");
    let (_, ended) = suite.run_command(&["send", "approval", "b-1", "Approved"], 1);
    assert!(!ended.is_empty());
    let (_, nobody) = suite.run_command(&["show", "approval", "b-3"], 1);
    assert!(nobody.contains("b-3"), "{nobody}");
    let (_, foreign) = suite.run_command(&["list", "--tenant", "acme"], 1);
    assert!(foreign.contains("tenant acme"), "{foreign}");
    let snapshot = suite.text(&["watch", "--once", "--ended", "--output", "json"]);
    assert!(snapshot.lines().any(|line| line.contains("SAGA_STATUS_KILLED")), "{snapshot}");
    suite.text(&["retire", "approval"]);
    let (_, retired) = suite.run_command(&["start", "approval", "b-4"], 1);
    assert!(retired.contains("approval"), "{retired}");
}
