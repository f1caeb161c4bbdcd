//! Parts of the launcher's own program that run confined, without anything being executed.

use std::collections::BTreeMap;
use std::process::Stdio;

use sandbox::{
    Confinement, FileRules, InitEvent, ProcessLimits, SandboxProgram, SandboxRequest, SandboxedJob,
    SyscallRules,
};
use tokio::io::AsyncReadExt as _;

use crate::setup::launcher;

/// Runs a builtin to its end; gives what it printed and the events about it.
async fn run(name: &str, confinement: Confinement) -> (String, Vec<InitEvent>) {
    let (out, their_out) = std::io::pipe().unwrap();
    let request = SandboxRequest {
        program: SandboxProgram::Builtin(name.to_owned()),
        args: Vec::new(),
        env: BTreeMap::new(),
        dir: "/".into(),
        confinement,
    };
    let mut child = SandboxedJob::start(&launcher(), &request, their_out.into(), Stdio::null()).unwrap();
    let mut events = Vec::new();
    while let Some(event) = child.next().await.unwrap() {
        events.push(event);
    }
    let mut printed = String::new();
    let mut out = tokio::net::unix::pipe::Receiver::from_owned_fd(out.into()).unwrap();
    out.read_to_string(&mut printed).await.unwrap();
    (printed, events)
}

fn exit_code(events: &[InitEvent]) -> Option<i32> {
    events.iter().find_map(|event| match event {
        InitEvent::Exited { code, .. } => Some(*code),
        _ => None,
    })
}

#[tokio::test]
async fn a_builtin_has_its_standard_descriptors_and_nothing_else() {
    let without = Confinement::default();
    let (printed, events) = run("look-around", without.clone()).await;
    assert_eq!(exit_code(&events), Some(0), "{events:?}");
    let expected = "read Ok(0) open [0, 1, 2] opened [true, true, true, true] listens true\n";
    assert_eq!(printed, expected, "the socket to the runner least of all");
    // Each of the layers is enough against files; rules that name nothing leave not even devices.
    let files = Confinement { files: Some(FileRules::default()), ..without.clone() };
    let (printed, _) = run("look-around", files).await;
    assert!(printed.contains("opened [false, false, false, false]"), "{printed}");
    let limits = ProcessLimits { open_files: Some(3), ..ProcessLimits::default() };
    let (printed, _) = run("look-around", Confinement { limits, ..without.clone() }).await;
    assert!(printed.contains("opened [false, false, false, false] listens false"), "{printed}");
    let (printed, _) =
        run("look-around", Confinement { syscalls: Some(SyscallRules { network: false }), ..without }).await;
    assert!(printed.ends_with("listens false\n"), "{printed}");
}

#[tokio::test]
async fn a_builtin_that_panics_exits_and_one_that_is_not_there_is_refused() {
    let (_, events) = run("panics", Confinement::default()).await;
    assert_eq!(exit_code(&events), Some(101), "{events:?}");
    let (_, events) = run("absent", Confinement::default()).await;
    let refused = |event: &InitEvent| matches!(event, InitEvent::Refused { layer, detail } if layer == "exec" && detail.contains("absent"));
    assert!(events.first().is_some_and(refused), "{events:?}");
}
