//! A job whose instance dies under it again and again.

use std::time::Duration;

use model::Timestamp;
use model::limits::DEATH_WAIT_SECS;
use serde_json::Value;
use testkit::{Witness, WitnessMark, wait_until_blocking};

use crate::local::Processes;
use crate::suite::{PATIENCE, command, flow_file, processes_in, stdout};

/// The suite with one flow of one job that never ends by itself.
struct Scene {
    processes: Processes,
    witness: Witness,
}

impl Scene {
    fn mycora(&self, arguments: &[&str], code: i32) -> String {
        stdout(&command(&self.processes.profile(), arguments).output().expect("it starts"), code)
    }

    fn node(&self) -> Value {
        let text = self.mycora(&["--output", "json", "flow", "nodes", "1"], 0);
        let document: Value = serde_json::from_str(&text).expect("one document");
        document["nodes"][0].clone()
    }

    /// The script of attempt `number` has begun.
    fn wait_for_start(&self, number: usize) {
        let begun = || (self.witness.lines().len() == number).then_some(());
        wait_until_blocking(begun, PATIENCE, format!("attempt {number} has started"));
        let (mark, _, attempt) = self.witness.lines().pop().expect("a line");
        assert_eq!((mark, attempt), (WitnessMark::Start, number.to_string()));
    }

    /// Kills the instance under the script; gives the node when that has come to the coordinator.
    fn kill(&self, deaths: u64) -> Value {
        let running = || (self.node()["state"] == "NODE_STATE_RUNNING").then_some(());
        wait_until_blocking(running, PATIENCE, "the coordinator knows that it runs");
        self.processes.kill9("runner");
        let counted = || Some(self.node()).filter(|node| node["deaths"] == deaths);
        wait_until_blocking(counted, PATIENCE, format!("death {deaths} is counted"))
    }
}

#[test]
fn a_job_whose_instance_dies_three_times_is_quarantined() {
    let dir = tempfile::tempdir().expect("a directory");
    let processes = Processes::start(&dir.path().join("suite"), &[("MYCORA_TYPES", "shell")]);
    let scene = Scene { processes, witness: Witness::new(dir.path()) };
    let script = scene.witness.shell("mortal", "sleep 600").replace('\n', "\n      ");
    // With retries for ever: they do not help it.
    let text = format!(
        "name: mortal\njobs:\n  mortal:\n    script_type: shell\n    retries: 100\n    \
         backoff: {{ initial: 0.1 }}\n    script: |\n      {script}\n"
    );
    scene.mycora(&["flow", "submit", &flow_file(dir.path(), &text)], 0);

    scene.wait_for_start(1);
    let first = scene.kill(1);
    // Whether it waits or was sent again already is up to the machine.
    assert_eq!((&first["attempt"], first.get("tries")), (&2.into(), None), "{first}");
    scene.processes.script("up.sh");
    scene.wait_for_start(2);

    let second = scene.kill(2);
    let killed = Timestamp::now();
    assert_eq!(second["state"], "NODE_STATE_READY", "not before the third: {second}");
    let explained = scene.mycora(&["flow", "explain", "1", "mortal"], 0);
    assert!(explained.contains("death 2 of 3") && explained.contains("death_wait_secs"), "{explained}");
    assert!(explained.contains("2 of 3 deaths"), "the limits say what is left: {explained}");
    scene.processes.script("up.sh");
    scene.wait_for_start(3);
    let waited = Timestamp::now().since(killed);
    let least = Duration::from_secs(u64::from(DEATH_WAIT_SECS) - 5);
    assert!(waited >= least, "it waits longer after the second death: {waited:?}");
    assert!(scene.mycora(&["flow", "nodes", "1"], 0).contains("(2 deaths before)"));

    let third = scene.kill(3);
    assert_eq!(
        (&third["state"], &third["reason"]["code"]),
        (&"NODE_STATE_FAILED".into(), &"QUARANTINED".into()),
        "{third}"
    );
    scene.mycora(&["flow", "watch", "1"], 1);
    scene.processes.script("up.sh");

    // Who runs it again has looked at it: it begins with a fresh count.
    scene.mycora(&["flow", "retry", "1"], 0);
    scene.wait_for_start(4);
    let again = scene.node();
    assert_eq!((&again["generation"], again.get("deaths")), (&2.into(), None), "{again}");
    scene.mycora(&["flow", "cancel", "1", "--grace", "0"], 0);
    let work = scene.processes.dir().join("work");
    wait_until_blocking(|| processes_in(&work).is_empty().then_some(()), PATIENCE, "it is cancelled");
}
