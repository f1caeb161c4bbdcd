//! A supervisor whose operator has named no coordinator.

use std::process::Command;

use identity::ServiceName;
use serde_json::Value;
use testkit::{TestProcess, wait_until_blocking};

use crate::local::Processes;
use crate::suite::{PATIENCE, command, flow_file, get, program, stdout};

/// A supervisor in the place of the suite's, as `up.sh` starts it, but without named coordinators.
fn supervisor(processes: &Processes) -> TestProcess {
    let dir = processes.dir();
    let port = processes.port_of(ServiceName::Supervisor);
    let pki = |file: &str| dir.join("pki").join(file);
    let mut command = Command::new(program("mycora-supervisor"));
    command
        .env_remove("MYCORA_COORDINATOR")
        .env("MYCORA_LISTEN", format!("127.0.0.1:{port}"))
        .env("MYCORA_OPS_LISTEN", format!("127.0.0.1:{}", port + 100))
        .env("MYCORA_OPS_TOKEN_FILE", dir.join("ops.token"))
        .env("MYCORA_TLS_CA", pki("ca.pem"))
        .env("MYCORA_TLS_CERT", pki("supervisor.pem"))
        .env("MYCORA_TLS_KEY", pki("supervisor.key"))
        .env("MYCORA_REDIS_URL", format!("unix://{}?db=63", dir.join("redis.sock").display()))
        .env("MYCORA_WORK_DIR", dir.join("work"));
    TestProcess::spawn("mycora-supervisor", &mut command)
}

#[test]
fn a_supervisor_takes_no_jobs_of_an_unnamed_coordinator() {
    let dir = tempfile::tempdir().expect("a directory");
    let processes = Processes::start(&dir.path().join("suite"), &[("MYCORA_TYPES", "shell")]);
    let pki = processes.dir().join("pki");
    let [cert, key, pki] = ["admin.pem", "admin.key", ""].map(|name| pki.join(name).display().to_string());
    let mycora = |arguments: &[&str], code: i32| {
        stdout(&command(&processes.profile(), arguments).output().expect("it starts"), code)
    };
    let json = |arguments: &[&str], code: i32| -> Value {
        let text = mycora(&[&["--output", "json"], arguments].concat(), code);
        serde_json::from_str(&text).expect("one document")
    };
    let file = flow_file(dir.path(), "name: one\njobs:\n  one: { script_type: shell, script: 'exit 0' }\n");
    let submit = ["flow", "submit", &file, "--watch"];
    json(&submit, 0);

    processes.kill9("supervisor");
    let mut alone = supervisor(&processes);
    let line = alone.wait_for_line("takes no jobs of any coordinator", PATIENCE);
    assert!(line.contains("WARN") && line.contains("--coordinator"), "{line}");
    alone.wait_for_line("supervisor started", PATIENCE);
    let info = get(processes.dir(), processes.port_of(ServiceName::Supervisor) + 100, "/info");
    assert!(info.contains("\"intake\": \"takes no jobs of any coordinator"), "{info}");
    let admin = ["--cert", &cert, "--key", &key];
    let shown = json(&[&admin[..], &["supervisor", "show"]].concat(), 0);
    assert!(
        shown["intakeProblem"].as_str().is_some_and(|problem| problem.contains("--coordinator")),
        "{shown}"
    );
    let looked = json(&[&admin[..], &["doctor"]].concat(), 1);
    let findings = looked["findings"].as_array().expect("findings");
    let intake = findings.iter().find(|finding| finding["check"] == "intake").expect("looked at");
    assert_eq!(intake["level"], "fail", "{intake}");
    assert!(intake["advice"].as_str().is_some_and(|advice| advice.contains("mycora pki root")), "{intake}");

    // The way out is named with the key that belongs there.
    let root = mycora(&["pki", "root", "--dir", &pki], 0);
    let refused = json(&submit, 1);
    let reason = &refused["nodes"][0]["reason"];
    assert_eq!(reason["code"], "POLICY_REFUSED", "{refused}");
    let detail = reason["detail"].as_str().expect("a sentence");
    assert!(detail.contains(&format!("`--coordinator {}`", root.trim())), "{detail}");

    drop(alone);
    let free = || is_free(&processes).then_some(());
    wait_until_blocking(free, PATIENCE, "its ports are free");
    processes.script("up.sh");
    let show = json(&[&admin[..], &["supervisor", "show"]].concat(), 0);
    assert_eq!(show.get("intakeProblem"), None, "{show}");
    json(&submit, 0);
}

/// Returns true if no process listens on the supervisor's port.
fn is_free(processes: &Processes) -> bool {
    std::net::TcpListener::bind(("127.0.0.1", processes.port_of(ServiceName::Supervisor))).is_ok()
}
