//! BullMQ, as its own program drives it: a worker and a client, over a Redis that is set up like the suite's.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use testkit::RedisServer;

use super::Load;
use crate::usage::{Meter, Redis};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Where its packages are put, from the root of the repository.
const PLACE: &str = "target/bench-peers";

pub(crate) struct Peer {
    client: Program,
    _worker: Program,
    _redis: RedisServer,
}

impl Peer {
    /// Starts BullMQ; the error says why this machine cannot have it.
    pub(crate) fn bullmq() -> Result<Result<(Self, Meter), String>, Error> {
        let place = Path::new(PLACE);
        if !place.join("node_modules/bullmq").is_dir() {
            return Ok(Err(format!("its packages are not in {PLACE}: make bench-peers puts them there")));
        }
        let redis = RedisServer::builder();
        let redis = redis.config("appendonly yes").config("appendfsync everysec").config("save \"\"");
        let redis =
            redis.config("hash-max-listpack-value 1024").config("hash-max-listpack-entries 128").start();
        // Beside its packages, where Node looks for them.
        std::fs::copy(source("bullmq.mjs"), place.join("bullmq.mjs"))?;
        let worker = Program::start(place, "worker", &redis)?;
        let client = Program::start(place, "client", &redis)?;
        let processes = vec![
            ("suite".to_owned(), worker.child.id()),
            ("client".to_owned(), client.child.id()),
            ("redis".to_owned(), redis.pid()),
        ];
        let meter = Meter::new(processes, Redis { socket: redis.socket(), password: None });
        Ok(Ok((Self { client, _worker: worker, _redis: redis }, meter)))
    }

    /// Runs a load; gives its figures.
    pub(crate) fn run(&mut self, load: Load) -> Result<Vec<f64>, Error> {
        let (request, answers): (_, &[&str]) = match load {
            Load::Chain { length, runs } => {
                (serde_json::json!({"load": "chain", "length": length, "runs": runs}), &["milliseconds"])
            }
            Load::FanOut { width, runs } => {
                (serde_json::json!({"load": "fan_out", "width": width, "runs": runs}), &["milliseconds"])
            }
            Load::Single { flows, at_once } => {
                (serde_json::json!({"load": "single", "flows": flows, "at_once": at_once}), &["per_second"])
            }
            Load::Wide { jobs } => (serde_json::json!({"load": "wide", "jobs": jobs}), &["per_second"]),
            Load::Alone { flows } => {
                (serde_json::json!({"load": "alone", "flows": flows}), &["start_p50", "start_p99", "end_p50"])
            }
        };
        let figures: serde_json::Value = serde_json::from_str(&self.client.ask(&request.to_string())?)?;
        let figure =
            |name: &&str| figures[*name].as_f64().ok_or_else(|| format!("no {name} in {figures}").into());
        answers.iter().map(figure).collect()
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// A process that reads lines and answers with lines. It ends with its input.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(place: &Path, role: &str, redis: &RedisServer) -> Result<Self, Error> {
        let mut command = Command::new("node");
        command.arg("bullmq.mjs").arg(role).arg(redis.socket()).current_dir(place);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("a piped output")?);
        let mut program = Self { input: child.stdin.take(), child, output };
        match program.line()?.as_str() {
            "ready" => Ok(program),
            other => Err(format!("the {role} of BullMQ says {other:?} instead of being ready").into()),
        }
    }

    fn ask(&mut self, line: &str) -> Result<String, Error> {
        writeln!(self.input.as_mut().ok_or("it has not ended")?, "{line}")?;
        self.line()
    }

    fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("BullMQ has ended; what it said stands above".into());
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}
