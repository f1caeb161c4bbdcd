//! A script that runs in a directory of its own, and what becomes of it.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use model::EndedProcess;
use sandbox::{
    Confinement, FileRules, InitEvent, SandboxLauncher, SandboxRequest, SandboxedJob, SyscallRules,
    system_paths,
};
use tempfile::TempDir;

/// The program of this crate.
pub(crate) fn launcher() -> SandboxLauncher {
    SandboxLauncher::at(env!("CARGO_BIN_EXE_mycora-sandbox").into())
}

/// How a script ended.
#[derive(Debug, Default)]
pub(crate) struct SandboxTestOutcome {
    pub(crate) refused: Option<(String, String)>,
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) left: bool,
    pub(crate) ended: Vec<EndedProcess>,
    pub(crate) output: String,
}

/// A place for one job, which other users can pass through to.
pub(crate) struct SandboxTestDir {
    pub(crate) root: TempDir,
    pub(crate) dir: PathBuf,
}

impl SandboxTestDir {
    pub(crate) fn new() -> Self {
        let passable = std::fs::Permissions::from_mode(0o711);
        let root = tempfile::Builder::new().permissions(passable).tempdir().unwrap();
        let dir = root.path().join("job");
        std::fs::create_dir(&dir).unwrap();
        Self { root, dir }
    }

    /// Everything of the file system and the system calls that a job gets.
    pub(crate) fn confined(&self) -> Confinement {
        let files = FileRules { read: system_paths(), write: vec![self.dir.clone()] };
        let syscalls = SyscallRules { network: false };
        Confinement { files: Some(files), syscalls: Some(syscalls), ..Confinement::default() }
    }

    pub(crate) fn start(
        &self,
        program: &str,
        args: &[&str],
        confinement: Confinement,
    ) -> (SandboxedJob, std::io::PipeReader) {
        let (out, their_out) = std::io::pipe().unwrap();
        let request = SandboxRequest {
            program: program.into(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into()), ("HERE".into(), text(&self.dir))]),
            dir: self.dir.clone(),
            confinement,
        };
        let err = their_out.try_clone().unwrap();
        let child = SandboxedJob::start(&launcher(), &request, their_out.into(), err.into()).unwrap();
        (child, out)
    }

    /// Runs a program to its end.
    pub(crate) async fn run(
        &self,
        program: &str,
        args: &[&str],
        confinement: Confinement,
    ) -> SandboxTestOutcome {
        let (child, out) = self.start(program, args, confinement);
        end_of(child, out).await
    }

    pub(crate) async fn shell(&self, script: &str, confinement: Confinement) -> SandboxTestOutcome {
        self.run("/bin/sh", &["-c", script], confinement).await
    }

    pub(crate) async fn python(&self, script: &str, confinement: Confinement) -> SandboxTestOutcome {
        self.run("/usr/bin/python3", &["-I", "-S", "-c", script], confinement).await
    }
}

pub(crate) async fn end_of(mut child: SandboxedJob, mut out: std::io::PipeReader) -> SandboxTestOutcome {
    let reading = std::thread::spawn(move || {
        let mut text = Vec::new();
        out.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned()).unwrap()
    });
    let mut outcome = SandboxTestOutcome::default();
    while let Some(event) = child.next().await.unwrap() {
        match event {
            InitEvent::Refused { layer, detail } => outcome.refused = Some((layer, detail)),
            InitEvent::Started { .. } => {}
            InitEvent::Exited { code, left } => (outcome.code, outcome.left) = (Some(code), left),
            InitEvent::Signalled { signal, left } => (outcome.signal, outcome.left) = (Some(signal), left),
            InitEvent::Over { ended } => outcome.ended = ended,
        }
        if outcome.left {
            // Should the rest have ended by itself, there is no receiver left.
            let _ = child.send_command(sandbox::InitCommand::Kill).await;
        }
    }
    outcome.output = reading.join().unwrap();
    outcome
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}
