//! Two sites, each with its own Redis, certificates and root key, that only Mycelium joins.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use testkit::{TestProcess, Witness, WitnessMark, free_port, wait_until_blocking};

use crate::suite::{PATIENCE, command, flow_file, place_of_scripts, program, started_at, stdout};

/// Jobs that go over, enough for several batches, unless `MYCORA_SITES_JOBS` sets the number.
const JOBS: usize = 400;

/// Two sites that `deploy/local/two-sites.sh` started.
pub(crate) struct Sites {
    dir: PathBuf,
    port_base: u16,
}

impl Sites {
    pub(crate) fn start(dir: &Path) -> Self {
        let sites = Self { dir: dir.to_owned(), port_base: free_ports() };
        stdout(&sites.script("two-sites.sh", &sites.dir), 0);
        sites
    }

    /// Runs a script of `deploy/local`.
    fn script(&self, name: &str, dir: &Path) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/local").join(name);
        let daemon = program("mycelium-stand-in");
        Command::new(script)
            .arg(dir)
            .env("MYCORA_BIN", daemon.parent().expect("target/<profile>"))
            // The real one where there is one.
            .env("MYCELIUM_BIN", std::env::var_os("MYCELIUM_BIN").unwrap_or_else(|| daemon.clone().into()))
            .env("MYCORA_SITES_PORT_BASE", self.port_base.to_string())
            .env("MYCORA_ALLOW_WRITE", place_of_scripts(&self.dir))
            .output()
            .expect("the script starts")
    }

    fn site(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn mycora(&self, site: &str, arguments: &[&str]) -> Output {
        command(&self.site(site).join("client.toml"), arguments).output().expect("it starts")
    }

    /// Where other daemons link to that of a site.
    pub(crate) fn daemon_port(&self, site: &str) -> u16 {
        self.port_base + 250 + if site == "b" { 300 } else { 0 }
    }

    /// The answer to a command as JSON.
    pub(crate) fn json(&self, site: &str, arguments: &[&str]) -> Value {
        let answer = self.mycora(site, &[&["--output", "json"], arguments].concat());
        serde_json::from_str(&stdout(&answer, 0)).expect("one document")
    }

    /// How actor 1 of a site is written to from elsewhere.
    fn actor(&self, site: &str) -> String {
        let actor = self.json(site, &["actor", "show"]);
        let pki = self.site(site).join("pki");
        let [cert, admin] = ["admin.pem", "admin.key"].map(|file| pki.join(file).display().to_string());
        let gateway = self.json(site, &["gateway", "show", "--cert", &cert, "--key", &admin]);
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        format!("{}@{}", text(&actor["actor"]["pubkey"]), text(&gateway["address"]))
    }

    /// Answers of `redis-cli` in context 1 of a site.
    fn redis(&self, site: &str, arguments: &[&str]) -> String {
        let socket = self.site(site).join("redis.sock");
        let output =
            Command::new("redis-cli").arg("-s").arg(socket).args(["-n", "1"]).args(arguments).output();
        String::from_utf8(output.expect("`redis-cli` starts").stdout).expect("text")
    }

    /// Kills a site's daemon, which forgets all that it had, and starts it again.
    fn restart_daemon(&self, site: &str) {
        let record = std::fs::read_to_string(self.site(site).join("run/mycelium.pid")).expect("it runs");
        let pid = record.split(' ').next().expect("a process id");
        let killed = Command::new("kill").args(["-KILL", pid]).status().expect("kill starts");
        assert!(killed.success());
        // One that is still dying counts as running, and would not be started.
        wait_until_blocking(|| started_at(pid).is_none().then_some(()), PATIENCE, "the daemon is gone");
        stdout(&self.script("two-sites.sh", &self.dir), 0);
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        for site in ["a", "b"] {
            self.script("down.sh", &self.site(site));
        }
    }
}

/// The first of 600 ports, of which those that are used are likely to be free.
fn free_ports() -> u16 {
    (0..100)
        .map(|_| free_port())
        .find(|base| {
            let used = [1, 2, 3, 4, 5, 6, 7, 101, 107, 250, 251, 252];
            let both = used.iter().flat_map(|offset| [*offset, 300 + offset]);
            both.map(|offset: u16| base.checked_add(offset))
                .all(|port| port.is_some_and(|port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()))
        })
        .expect("a range of free ports")
}

#[test]
fn jobs_run_at_the_other_site_while_daemons_come_and_go() {
    let dir = tempfile::tempdir().expect("a directory");
    let sites = Sites::start(&dir.path().join("sites"));
    let witness = Witness::new(dir.path());
    let jobs = std::env::var("MYCORA_SITES_JOBS").map_or(JOBS, |jobs| jobs.parse().expect("a number"));
    let names: Vec<String> = (0..jobs).map(|i| format!("n{i}")).collect();
    let mut text = String::from("name: far\njobs:\n");
    for name in &names {
        let script = witness.shell(name, "echo \"at=b\" >> \"$MYCORA_RESULT\"").replace('\n', "\n      ");
        text.push_str(&format!(
            "  {name}:\n    script_type: shell\n    target: {{ runner: 2 }}\n    script: |\n      {script}\n"
        ));
    }
    let file = flow_file(dir.path(), &text);
    stdout(&sites.mycora("a", &["flow", "submit", &file]), 0);
    for (restarts, site) in ["a", "b", "a", "b"].into_iter().enumerate() {
        let begun = || witness.lines().iter().filter(|(mark, ..)| *mark == WitnessMark::Start).count();
        let wanted = jobs * (restarts + 1) / 6;
        wait_until_blocking(|| (begun() >= wanted).then_some(()), PATIENCE, "more jobs have begun");
        sites.restart_daemon(site);
    }
    let watched = sites.mycora("a", &["--output", "json", "flow", "watch", "1"]);
    let document: Value = serde_json::from_str(&stdout(&watched, 0)).expect("one document");
    assert_eq!(document["flow"]["status"], "FLOW_STATUS_FINISHED", "{}", document["flow"]);
    witness.assert_each_once(&names.iter().map(String::as_str).collect::<Vec<_>>());
    // The other site has run them and knows nothing of the flow.
    stdout(&sites.mycora("b", &["flow", "get", "1"]), 1);
}

#[test]
fn actors_of_both_sites_write_to_each_other() {
    let dir = tempfile::tempdir().expect("a directory");
    let sites = Sites::start(&dir.path().join("sites"));
    let (a, b) = (sites.actor("a"), sites.actor("b"));
    let key = sites.site("a").join("pki/actor-1.ed25519");
    let key = key.to_str().expect("a plain path");
    let arguments = ["message", "send", "--wait", "--to", &b, "--signing-key", key, "good morning"];
    let sent = stdout(&sites.mycora("a", &arguments), 0);
    assert!(sent.contains("has arrived"), "{sent}");

    // A reader that dies before it acknowledges has read nothing.
    let mut command = command(&sites.site("b").join("client.toml"), &["message", "receive", "--follow"]);
    let mut reader = TestProcess::spawn("a reader", &mut command);
    reader.wait_for_line("good morning", PATIENCE);
    reader.kill9();
    let received = sites.json("b", &["message", "receive"]);
    let message = &received[0];
    assert_eq!(
        (&message["text"], &message["verified"]),
        (&"good morning".into(), &true.into()),
        "{received}"
    );
    assert_eq!(message["origin"]["callerId"], 1);
    let name = message["key"].as_str().expect("its key");
    assert_eq!(sites.redis("b", &["LRANGE", "msg_in", "0", "-1"]).trim(), name);
    stdout(&sites.mycora("b", &["message", "acknowledge", name]), 0);
    assert_eq!(sites.json("b", &["message", "receive"]), Value::Array(Vec::new()));

    let arguments = ["message", "send", "--wait", "--mail", "--topic", "Re", "--to", &a, "good night"];
    stdout(&sites.mycora("b", &arguments), 0);
    let received = sites.json("a", &["message", "receive"]);
    assert_eq!(received[0]["verified"], Value::Null, "nobody has signed it: {received}");

    // No actor has that key: the message fails at once, with that reason.
    let (_, address) = b.split_once('@').expect("a key and where");
    let nobody = format!("{}@{address}", "0a".repeat(32));
    let refused = sites.mycora("a", &["message", "send", "--wait", "--to", &nobody, "who are you"]);
    assert!(stdout(&refused, 1).contains("UNKNOWN_RECIPIENT"));
    let dead = sites.json("a", &["message", "dead-letters"]);
    assert_eq!(dead["messages"].as_array().map(Vec::len), Some(1), "{dead}");
}
