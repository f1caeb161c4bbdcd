//! `mycora up --detach` and `mycora down`.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use stand_in::{Overlay, StandIn, Traps};
use testkit::free_port;

use crate::{stderr, stdout};

/// A data directory whose all-in-one is ended with the test, however that ends.
pub(crate) struct DetachedFixture {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) port: u16,
}

impl DetachedFixture {
    pub(crate) fn new() -> Self {
        let ports = std::iter::repeat_with(free_port).take(100);
        let has_ops = |port: &u16| {
            port.checked_add(100).is_some_and(|ops| TcpListener::bind(("127.0.0.1", ops)).is_ok())
        };
        let port = { ports }.find(has_ops).expect("two free ports, 100 apart");
        Self { dir: tempfile::tempdir().expect("a directory"), port }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join(".mycora")
    }

    /// The program, with the search path of the test run.
    pub(crate) fn mycora(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mycora"));
        self.settle(&mut command).args(arguments).output().expect("it starts")
    }

    pub(crate) fn settle<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).env("HOME", self.dir.path());
        command.env("MYCORA_PORT", self.port.to_string()).current_dir(self.dir.path()).stdin(Stdio::null())
    }

    fn owner(&self) -> Option<u32> {
        let record = std::fs::read_to_string(self.data().join("up.pid")).ok()?;
        record.split(' ').next()?.parse().ok()
    }
}

impl Drop for DetachedFixture {
    fn drop(&mut self) {
        if self.data().exists() {
            let down = self.mycora(&["down", "--data", ".mycora"]);
            assert!(down.status.success() || std::thread::panicking(), "{}", stderr(&down));
        }
    }
}

/// Checks how something ended, and returns its standard output.
fn ended(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}\n{}", stdout(output), stderr(output));
    stdout(output)
}

#[test]
fn a_detached_suite_runs_until_it_is_ended() {
    let place = DetachedFixture::new();
    let up = ["up", "--data", ".mycora", "--no-supervisor", "--detach"];
    let printed = ended(&place.mycora(&up), 0);
    let data = place.data().canonicalize().expect("it was made");
    assert!(
        printed.starts_with(&format!("mycora is ready on https://127.0.0.1:{}, ", place.port)),
        "{printed}"
    );
    assert!(printed.contains(&format!("log           {}/up.log\n", data.display())), "{printed}");
    assert!(printed.contains(&format!("to end it     mycora down --data {}\n", data.display())), "{printed}");
    let pid = place.owner().expect("it has signed");
    let process = sandbox::processes::observe(pid).expect("it runs");
    assert_eq!(process.session, pid, "it has left the session of the terminal");
    let listed = place.mycora(&["flow", "list", "--config", ".mycora/client.toml"]);
    ended(&listed, 0);

    let refused = place.mycora(&up);
    ended(&refused, 3);
    let way_out = format!(
        "is in use by another `mycora up`; end that one with `mycora down --data {}`",
        data.display()
    );
    assert!(stderr(&refused).contains(&way_out), "{}", stderr(&refused));
    assert_eq!(place.owner(), Some(pid), "it goes on");

    let down = ["down", "--data", ".mycora", "--output", "json"];
    let document = |output| -> serde_json::Value { serde_json::from_str(&ended(&output, 0)).expect("JSON") };
    assert_eq!(document(place.mycora(&down))["pid"], pid);
    assert!(sandbox::processes::observe(pid).is_err(), "it has ended when this is said");
    assert_eq!(document(place.mycora(&down))["ended"], false);
    assert_eq!(ended(&place.mycora(&down[..3]), 0), "nothing runs on .mycora\n");
    let log = std::fs::read_to_string(data.join("up.log")).expect("a log");
    assert!(log.contains("stopping: no new work is accepted"), "{log}");
}

#[test]
fn it_takes_what_single_services_take() {
    let place = DetachedFixture::new();
    let redis = testkit::RedisServer::start();
    let daemon = StandIn::start(&Overlay::default(), Traps::default());
    let daemon_url = daemon.url("http");
    let (_, daemon_port) = daemon_url.rsplit_once(':').expect("a port");
    let (listen, mesh) = (format!("127.0.0.2:{}", place.port), format!("127.0.0.1:{}", free_port()));
    let redis_url = redis.url();
    let mut up = vec!["up", "--data", ".mycora", "--detach", "--output", "json"];
    up.extend(["--listen", &listen, "--redis-url", &redis_url, "--mycelium-port", daemon_port]);
    up.extend(["--mesh", "linkerd", "--mesh-listen", &mesh, "--mesh-namespace", "mycora"]);
    let printed: serde_json::Value = serde_json::from_str(&ended(&place.mycora(&up), 0)).expect("JSON");
    assert_eq!(printed["address"], format!("https://{listen}"));
    assert!(!place.data().join("redis").exists(), "it has no Redis of its own");

    let client = |arguments: &[&str]| {
        let config = ["--config", ".mycora/client.toml", "--output", "json"];
        let printed = ended(&place.mycora(&[&config, arguments].concat()), 0);
        serde_json::from_str::<serde_json::Value>(&printed).expect("JSON")
    };
    // The supervisor of this program is reached beside the daemon, which leads to all others.
    let ran = client(&["job", "run", "--type", "shell", "--script", "true"]);
    assert_eq!(ran["flow"]["status"], "FLOW_STATUS_FINISHED", "{ran}");
    let gateway = client(&["gateway", "show", "--as", "admin"]);
    assert!(gateway.to_string().contains(&daemon.identity().key_text()), "{gateway}");
    let kept = Command::new("redis-cli")
        .arg("-s")
        .arg(redis.socket())
        .args(["-n", "1", "EXISTS", "flow:1"])
        .output();
    assert_eq!(stdout(&kept.expect("redis-cli starts")), "1\n");
    // What else it finds on this machine is of no concern.
    let doctor = place.mycora(&["doctor", "--output", "json", "--mesh-address", &format!("http://{mesh}")]);
    let doctor: serde_json::Value = serde_json::from_str(&stdout(&doctor)).expect("JSON");
    let findings = doctor["findings"].as_array().expect("findings");
    let port = findings.iter().find(|finding| finding["check"] == "mesh port").expect("it is looked at");
    assert!(port.to_string().contains("answers on this machine"), "{port}");
}

#[test]
fn a_detached_start_that_fails_prints_its_reason() {
    let place = DetachedFixture::new();
    let _taken = TcpListener::bind(("127.0.0.1", place.port)).expect("it is free");
    let refused = place.mycora(&["up", "--data", ".mycora", "--detach"]);
    ended(&refused, 3);
    let printed = stderr(&refused);
    assert!(
        printed.starts_with("mycora did not start; ") && printed.contains("choose another with --port"),
        "{printed}"
    );
    let elsewhere = place.mycora(&["down", "--data", "elsewhere"]);
    ended(&elsewhere, 2);
    assert!(stderr(&elsewhere).contains("elsewhere is no data directory"), "{}", stderr(&elsewhere));
}
