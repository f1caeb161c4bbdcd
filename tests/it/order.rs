//! Jobs that are free at once begin in the order of their flow.

use model::Timestamp;
use serde_json::Value;

use crate::scene::Scene;

/// More than one message carries: the last one is the smallest, and is read sooner.
const WIDTH: usize = 500;

#[test]
fn a_fan_out_begins_in_the_order_of_its_jobs() {
    let scene = Scene::new(&["--slots", "1"]);
    let mut text = String::from("name: ordered\njobs:\n");
    for job in 0..WIDTH {
        text.push_str(&format!("  n{job:03}: {{ script_type: rhai, script: \"()\" }}\n"));
    }
    let (_, ended) = scene.run(&text);
    assert_eq!(ended.status, "FINISHED");
    // One slot: what began later began after all that began before it.
    let start = |node: &Value| node["startTime"].as_str().and_then(Timestamp::from_rfc3339);
    let begun = ended.nodes.iter().map(|(name, node)| (start(node).expect("it began"), name.as_str()));
    let mut begun: Vec<_> = begun.collect();
    begun.sort_unstable();
    let names: Vec<&str> = begun.into_iter().map(|(_, name)| name).collect();
    let expected: Vec<String> = (0..WIDTH).map(|job| format!("n{job:03}")).collect();
    let first = names.iter().zip(&expected).position(|(name, expected)| name != expected);
    let from = first.unwrap_or_default();
    assert_eq!(first, None, "out of order: {:?}", &names[from..WIDTH.min(from + 5)]);
    scene.close();
}
