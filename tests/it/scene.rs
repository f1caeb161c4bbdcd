//! One flow in a suite of its own: what it ends as, and the trail of events that led there.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use testkit::{Witness, wait_until_blocking};

use crate::suite::{PATIENCE, Up, flow_file, stdout};

/// A suite in one process.
pub(crate) struct Scene {
    // Ended before the directory goes.
    pub(crate) up: Up,
    pub(crate) dir: TempDir,
}

/// How a flow stands, and its nodes by name.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: String,
    pub(crate) flow: Value,
    pub(crate) nodes: BTreeMap<String, Value>,
}

impl Ended {
    /// A node's state, followed by the code of its reason when it has one.
    pub(crate) fn state(&self, name: &str) -> String {
        let node = &self.nodes[name];
        let state = node["state"].as_str().unwrap_or_default().trim_start_matches("NODE_STATE_");
        match node["reason"]["code"].as_str() {
            Some(code) => format!("{state} {code}"),
            None => state.to_owned(),
        }
    }

    /// All nodes, each as in [`Ended::state`].
    pub(crate) fn states(&self) -> Vec<(&str, String)> {
        self.nodes.keys().map(|name| (name.as_str(), self.state(name))).collect()
    }
}

impl Scene {
    /// A suite with these arguments of `mycora up`.
    pub(crate) fn new(arguments: &[&str]) -> Self {
        Self::within(tempfile::tempdir().expect("a directory"), arguments)
    }

    fn within(dir: TempDir, arguments: &[&str]) -> Self {
        let up = Up::start(&dir.path().join("data"), arguments);
        Self { up, dir }
    }

    /// A suite in this directory that is started with these variables.
    pub(crate) fn with_environment(dir: TempDir, environment: &[(&str, &OsStr)]) -> Self {
        let up = Up::start_with(&dir.path().join("data"), environment);
        Self { up, dir }
    }

    /// Two suites: one that executes, and one without a supervisor whose jobs run there, and have done so once.
    pub(crate) fn with_a_machine_elsewhere() -> (Self, Self) {
        let machine = Self::new(&[]);
        let runner = format!("grpc://127.0.0.1:{}", machine.up.port());
        let pki = machine.path().join("data/pki");
        let pki = pki.to_str().expect("a plain path");
        // Within what the machine's scripts may write.
        let dir = tempfile::tempdir_in(machine.path()).expect("a directory");
        let scene = Self::within(dir, &["--no-supervisor", "--runner", &runner, "--pki", pki]);
        // A start does not wait for a machine elsewhere.
        let (_, ended) = scene.run("name: reached\njobs:\n  only: { script_type: shell, script: 'true' }\n");
        assert_eq!(ended.status, "FINISHED");
        (machine, scene)
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn witness(&self) -> Witness {
        Witness::new(self.path())
    }

    /// Submits a flow and gives its number.
    pub(crate) fn submit(&self, text: &str) -> u64 {
        let file = flow_file(self.path(), text);
        let document = self.json(&["flow", "submit", &file], 0);
        document["flow"]["id"].as_u64().expect("an id")
    }

    /// The answer of a command as JSON.
    pub(crate) fn json(&self, arguments: &[&str], code: i32) -> Value {
        let arguments: Vec<&str> =
            ["--output", "json"].into_iter().chain(arguments.iter().copied()).collect();
        serde_json::from_str(&stdout(&self.up.mycora(&arguments), code)).expect("one document")
    }

    /// Waits for a flow's end.
    pub(crate) fn end(&self, id: u64) -> Ended {
        let out = self.up.mycora(&["--output", "json", "flow", "watch", &id.to_string()]);
        let code = out.status.code().unwrap_or(-1);
        assert!(code == 0 || code == 1, "{}", String::from_utf8_lossy(&out.stderr));
        let document: Value = serde_json::from_slice(&out.stdout).expect("one document");
        let status = document["flow"]["status"].as_str().unwrap_or_default();
        let nodes = document["nodes"].as_array().expect("nodes");
        let nodes =
            nodes.iter().map(|node| (node["name"].as_str().unwrap_or_default().to_owned(), node.clone()));
        Ended {
            status: status.trim_start_matches("FLOW_STATUS_").to_owned(),
            nodes: nodes.collect(),
            flow: document["flow"].clone(),
        }
    }

    /// Submits a flow and waits for its end.
    pub(crate) fn run(&self, text: &str) -> (u64, Ended) {
        let id = self.submit(text);
        (id, self.end(id))
    }

    /// A node as it stands.
    pub(crate) fn node(&self, id: u64, name: &str) -> Value {
        let document = self.json(&["flow", "nodes", &id.to_string()], 0);
        let nodes = document["nodes"].as_array().expect("nodes");
        nodes.iter().find(|node| node["name"] == name).unwrap_or(&Value::Null).clone()
    }

    /// Waits until a node is in a state, and gives it.
    pub(crate) fn wait_for(&self, id: u64, name: &str, state: &str) -> Value {
        let state = format!("NODE_STATE_{state}");
        let look = || Some(self.node(id, name)).filter(|node| node["state"] == state.as_str());
        wait_until_blocking(look, PATIENCE, format!("`{name}` of flow {id} is {state}"))
    }

    /// Returns a node's history from the context's stream of events: states with their attempts and the codes of
    /// their reasons. Events that repeat the one before are left out.
    pub(crate) fn trail(&self, id: u64, name: &str) -> Vec<String> {
        let job = self.node(id, name)["jobId"].as_u64().expect("a job");
        let mut trail: Vec<String> = Vec::new();
        for line in self.up.redis(1, &["XRANGE", "events", "-", "+"]).lines() {
            let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
            if event["kind"] != "node" || event["flow_id"] != id || event["job_id"] != job {
                continue;
            }
            let (state, attempt) = (event["state"].as_str().unwrap_or_default(), &event["attempt"]);
            let code = event["reason"].as_str().and_then(|reason| reason.split(':').next());
            let step = match code {
                Some(code) => format!("{state}#{attempt} {code}"),
                None => format!("{state}#{attempt}"),
            };
            if trail.last() != Some(&step) {
                trail.push(step);
            }
        }
        trail
    }

    /// Ends the suite.
    pub(crate) fn close(self) {
        self.up.stop();
    }
}

/// The process of the private Redis, as `up` has recorded it.
pub(crate) fn redis_pid(scene: &Scene) -> Option<String> {
    let record = std::fs::read_to_string(scene.path().join("data/redis.pid")).ok()?;
    record.split(' ').next().map(str::to_owned)
}
