//! Cost of one job of each kind: flows of jobs that do nothing, in each language that this machine has.

use std::time::Duration;

use model::ScriptType;
use mycora_cli::up;

use crate::client::{Client, node};
use crate::load;
use crate::report::Report;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Scripts that do nothing, in each language.
const SCRIPTS: [(ScriptType, &str); 7] = [
    (ScriptType::Python, "pass"),
    (ScriptType::Shell, ":"),
    (ScriptType::V, "fn main() {}"),
    (ScriptType::Rust, "fn main() {}"),
    (ScriptType::Rhai, "()"),
    (ScriptType::Osis, "()"),
    (ScriptType::Sal, "()"),
];

/// Jobs of one flow that depend on nothing, and jobs one after the other.
const MANY: u32 = 400;
const ONE_BY_ONE: usize = 50;

/// Measures every language that runs here, and python without warm interpreters.
pub(crate) async fn measure(report: &mut Report) -> Result<(), Error> {
    let warm = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
    let running = up::start(up::UpOptions::private(warm.path())).await?;
    let client = Client::connect(running.profile())?;
    for (script_type, script) in SCRIPTS {
        if client.offers(script_type).await? {
            report.runtime(&script_type.to_string(), language(&client, script_type, script).await?);
        } else {
            report.absent(&script_type.to_string());
        }
    }
    running.stop().await?;
    let cold = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
    let mut options = up::UpOptions::private(cold.path());
    options.scripts.warm = false;
    let running = up::start(options).await?;
    let client = Client::connect(running.profile())?;
    report.runtime("python, cold", language(&client, ScriptType::Python, "pass").await?);
    running.stop().await?;
    Ok(())
}

/// Measurements of one language.
pub(crate) struct Language {
    /// From a flow's submission to its script's start.
    pub(crate) to_start: Vec<Duration>,
    /// From a flow's submission to its end.
    pub(crate) whole: Vec<Duration>,
    /// Time for each of many jobs that run at once.
    pub(crate) each: Duration,
}

async fn language(client: &Client, script_type: ScriptType, script: &str) -> Result<Language, Error> {
    eprintln!("{script_type}");
    let one = |name: String| node(name, Vec::new(), script_type, script);
    // What is made once, such as a warm interpreter or a compiled script, is not what is measured.
    client.run("warm-up", vec![one("only".into())]).await?;
    let (to_start, whole) = load::one_by_one(client, ONE_BY_ONE, &one("only".into())).await?;
    let nodes: Vec<_> = (0..MANY).map(|n| one(format!("n{n}"))).collect();
    let all = load::timed(client, "many", nodes).await?;
    Ok(Language { to_start, whole, each: all / MANY })
}
