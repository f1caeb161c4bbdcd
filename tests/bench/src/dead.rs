//! Cost of one dead or hanging supervisor for jobs of the nine others.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use proto::v1::{NodeSpec, Target};
use tokio::task::JoinSet;

use crate::client::{Client, no_op};
use crate::load::timed;
use crate::processes::Separate;
use crate::report::Report;

type Error = Box<dyn std::error::Error + Send + Sync>;

const SUPERVISORS: u16 = 10;
const REPEATS: usize = 5;
/// Flows of one job that each of the nine gets in one run, one after the other.
const FLOWS: usize = 100;
/// Flows that the tenth is sent in one run, all at once.
const FOR_THE_TENTH: u32 = 50;
/// The supervisor of the suite itself uses the last.
const FIRST_DATABASE: u16 = 40;
/// From the suite's own ports on.
const FIRST_PORT: u16 = 17_730;

/// How the tenth supervisor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tenth {
    Alive,
    Killed,
    Hangs,
}

/// Runs the load with the tenth alive, killed and hanging, in turn.
pub(crate) async fn measure(report: &mut Report) -> Result<(), Error> {
    let dir = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
    let suite = Separate::start(dir.path())?;
    let client = Client::connect(&suite.profile()?)?;
    let mut machines = Vec::new();
    let mut runners = Vec::new();
    for number in 0..SUPERVISORS {
        let machine = Machine::start(dir.path(), number)?;
        runners.push(client.register(&machine.address()).await?);
        machines.push(machine);
    }
    for runner in &runners {
        client.wait_live(*runner).await;
    }
    let mut times = [const { Vec::new() }; 3];
    for repeat in 0..=REPEATS {
        for (at, tenth) in [Tenth::Alive, Tenth::Killed, Tenth::Hangs].into_iter().enumerate() {
            eprintln!("run {repeat} of {REPEATS}: the tenth supervisor: {tenth:?}");
            let machine = machines.last_mut().ok_or("ten supervisors")?;
            machine.become_(tenth)?;
            let measured = run(&client, &runners).await?;
            machine.revive(dir.path())?;
            client.wait_live(*runners.last().ok_or("ten runners")?).await;
            // The first round warms up.
            if repeat > 0 {
                times[at].extend(measured);
            }
        }
    }
    let [alive, killed, hangs] = times;
    report.dead(alive, killed, hangs);
    Ok(())
}

/// Times of whole flows at the nine, while the tenth is sent some as well.
async fn run(client: &Client, runners: &[u32]) -> Result<Vec<Duration>, Error> {
    let (tenth, nine) = runners.split_last().ok_or("ten runners")?;
    crate::load::submit_many(client, FOR_THE_TENTH, 8, &node_at(*tenth)).await?;
    let mut tasks = JoinSet::new();
    for runner in nine {
        let (client, node) = (client.clone(), node_at(*runner));
        tasks.spawn(async move {
            let mut times = Vec::with_capacity(FLOWS);
            for _ in 0..FLOWS {
                times.push(timed(&client, "one-of-nine", vec![node.clone()]).await?);
            }
            Ok::<_, Error>(times)
        });
    }
    let mut times = Vec::with_capacity(nine.len() * FLOWS);
    while let Some(ended) = tasks.join_next().await {
        times.extend(ended??);
    }
    Ok(times)
}

fn node_at(runner: u32) -> NodeSpec {
    let target = Some(Target { runner_id: runner, ..Default::default() });
    NodeSpec { target, ..no_op("only".into(), Vec::new()) }
}

/// A supervisor and a runner, each a process of its own.
struct Machine {
    number: u16,
    supervisor: Child,
    runner: Child,
}

impl Machine {
    fn start(dir: &Path, number: u16) -> Result<Self, Error> {
        let supervisor = spawn(dir, "supervisor", number)?;
        Ok(Self { number, supervisor, runner: spawn(dir, "runner", number)? })
    }

    fn address(&self) -> String {
        format!("grpc://127.0.0.1:{}", FIRST_PORT + self.number)
    }

    fn become_(&mut self, tenth: Tenth) -> Result<(), Error> {
        match tenth {
            Tenth::Alive => {}
            Tenth::Killed => {
                self.supervisor.kill()?;
                self.supervisor.wait()?;
            }
            Tenth::Hangs => self.signal("-STOP")?,
        }
        Ok(())
    }

    fn revive(&mut self, dir: &Path) -> Result<(), Error> {
        match self.supervisor.try_wait()? {
            Some(_) => self.supervisor = spawn(dir, "supervisor", self.number)?,
            None => self.signal("-CONT")?,
        }
        Ok(())
    }

    fn signal(&self, signal: &str) -> Result<(), Error> {
        let sent = Command::new("kill").args([signal, &self.supervisor.id().to_string()]).status()?;
        if sent.success() { Ok(()) } else { Err("the supervisor does not run".into()) }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for child in [&mut self.runner, &mut self.supervisor] {
            if child.kill().is_ok() {
                let _ = child.wait();
            }
        }
    }
}

/// The root key of the suite's coordinator.
fn root(dir: &Path) -> Result<String, Error> {
    let program = std::env::current_exe()?.with_file_name("mycora");
    let output = Command::new(program).args(["pki", "root", "--dir"]).arg(dir.join("pki")).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn spawn(dir: &Path, service: &str, number: u16) -> Result<Child, Error> {
    let program = std::env::current_exe()?.with_file_name(format!("mycora-{service}"));
    let pki = |ending: &str| -> PathBuf { dir.join("pki").join(format!("{service}.{ending}")) };
    let log = std::fs::File::create(dir.join(format!("{service}-{number}.log")))?;
    // A supervisor listens; a runner only reports its health to operators.
    let ops = FIRST_PORT + 100 + number + if service == "runner" { 50 } else { 0 };
    let child = Command::new(program)
        .env("MYCORA_LISTEN", format!("127.0.0.1:{}", FIRST_PORT + number))
        .env("MYCORA_OPS_LISTEN", format!("127.0.0.1:{ops}"))
        .env("MYCORA_TLS_CA", dir.join("pki/ca.pem"))
        .env("MYCORA_TLS_CERT", pki("pem"))
        .env("MYCORA_TLS_KEY", pki("key"))
        .env(
            "MYCORA_REDIS_URL",
            format!("unix://{}?db={}", dir.join("redis.sock").display(), FIRST_DATABASE + number),
        )
        .env("MYCORA_WORK_DIR", dir.join(format!("work-{number}")))
        .env("MYCORA_COORDINATOR", root(dir)?)
        .env("MYCORA_GROUP", "default")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    Ok(child)
}
