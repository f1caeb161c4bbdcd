//! Python, warm and cold.

use model::ScriptType;
use model::execution::Outcome as Kind;

use crate::setup::{Bench, job};

fn python(script: &str) -> model::Execution {
    job(ScriptType::Python, script)
}

#[tokio::test]
async fn smoke() {
    for warm in [true, false] {
        let mut bench = Bench::with(|settings| runner::Settings { warm, ..settings }).await;
        for _ in 0..3 {
            let outcome = bench.run(python("import sys, mycora, os\nmycora.result(warm='asyncio' in sys.modules)\nprint(os.getuid(), os.getcwd())")).await;
            assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
            println!("{outcome:?}");
        }
    }
}
