use std::sync::Arc;
use std::time::Duration;

use envelope::actor::sign_job;
use identity::SigningKey;
use model::id::Uid;
use model::{FlowNode, ScriptType};

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);

fn place<'a>(env_vars: &'a EnvVars, keys: &'a [String]) -> JobSigningContext<'a> {
    JobSigningContext { context_uid: ContextUid(Uid::from_bits(1)), caller: ActorId(3), keys, env_vars }
}

fn env(value: &str) -> EnvVars {
    [("LANG".to_owned(), value.to_owned())].into()
}

/// `split` makes a file, on which `count` depends.
fn nodes() -> Vec<NodeSpec> {
    let node = |name: &str, depends: &[&str], outputs: &[&str]| {
        let outputs = outputs.iter().map(|output| (*output).to_owned()).collect();
        let job = JobSpec { outputs, ..JobSpec::inline(ScriptType::Shell, format!("echo {name}")) };
        let depends = depends.iter().map(|name| name.parse().expect("a name")).collect();
        NodeSpec { depends, ..NodeSpec::new(name.parse().expect("a name"), job) }
    };
    vec![node("split", &[], &["part.txt"]), node("count", &["split"], &[])]
}

fn sign(node: &NodeSpec, received: &[&str], env_vars: &EnvVars, key: &SigningKey) -> String {
    let JobSigningContext { context_uid, caller, .. } = place(env_vars, &[]);
    let received = received.iter().map(|path| (*path).to_owned()).collect();
    let terms = JobTerms::of_job(&node.job, &node.policy, env_vars, received, (context_uid, caller));
    sign_job(&terms, key, NOW + HOUR)
}

/// With both signed, the second as one that receives these files.
fn signed(received: &[&str], key: &SigningKey) -> Vec<NodeSpec> {
    let mut nodes = nodes();
    nodes[0].job.signature = Some(sign(&nodes[0], &[], &env("C"), key));
    nodes[1].job.signature = Some(sign(&nodes[1], received, &env("C"), key));
    nodes
}

fn stored(nodes: &[NodeSpec]) -> Vec<StoredNode> {
    let depends = [vec![], vec![JobId(1)]];
    let ids = (1..).map(JobId);
    nodes
        .iter()
        .zip(ids.zip(depends))
        .map(|(node, (id, depends))| StoredNode {
            node: FlowNode::new(id, node, depends),
            job: Arc::new(node.job.clone()),
        })
        .collect()
}

fn fields(violations: &Violations) -> Vec<&str> {
    violations.as_slice().iter().map(|violation| violation.field.as_str()).collect()
}

#[test]
fn what_is_submitted_is_what_its_caller_has_signed() {
    let (key, other) = (SigningKey::generate(), [SigningKey::generate().verifying_key().to_string()]);
    let name = [key.verifying_key().to_string()];
    let check = |nodes: &[NodeSpec], keys: &[String], env_vars: &EnvVars, whole| {
        let found = check_specs(nodes, place(env_vars, keys), whole, "flow.", NOW);
        fields(&found).iter().map(|&field| field.to_owned()).collect::<Vec<_>>()
    };
    let both = ["flow.nodes[0].job.signature", "flow.nodes[1].job.signature"];
    assert!(!any(&nodes()) && any(&signed(&[], &key)));
    assert_eq!(check(&nodes(), &other, &env("C"), true), [""; 0], "nothing is signed");
    assert_eq!(check(&signed(&["part.txt"], &key), &name, &env("C"), true), [""; 0]);
    assert_eq!(check(&signed(&["part.txt"], &key), &other, &env("C"), true), both, "another's key");
    let counting = [other.clone(), name.clone()].concat();
    assert_eq!(
        check(&signed(&["part.txt"], &key), &counting, &env("C"), true),
        [""; 0],
        "a former key that counts"
    );
    assert_eq!(check(&signed(&["part.txt"], &key), &[], &env("C"), true), both, "no key counts");
    assert_eq!(check(&signed(&["part.txt"], &key), &name, &env("de"), true), both, "the flow's variables");
    let forgetful = signed(&[], &key);
    assert_eq!(check(&forgetful, &name, &env("C"), true), both[1..], "what it receives");
    assert_eq!(check(&forgetful, &name, &env("C"), false), [""; 0], "which is not known yet");
    let found = check_specs(&forgetful, place(&env("C"), &name), true, "", NOW);
    assert_eq!(fields(&found), ["nodes[1].job.signature"], "and then is");
    let mut late = signed(&["part.txt"], &key);
    late[0].job.signature = late[1].job.signature.clone();
    assert_eq!(check(&late, &name, &env("C"), true), both[..1], "of another job");
    let found = check_specs(&signed(&["part.txt"], &key), place(&env("C"), &name), true, "", NOW + HOUR);
    assert_eq!(fields(&found).len(), 2, "both are over");
}

#[test]
fn what_runs_again_has_signatures_that_fit() {
    let key = SigningKey::generate();
    let name = [key.verifying_key().to_string()];
    let flow = stored(&signed(&["part.txt"], &key));
    let rerun = |env_vars: &EnvVars, again: [bool; 2], new: &[(&str, String)], now| {
        let new = new.iter().map(|(name, signature)| ((*name).to_owned(), signature.clone())).collect();
        for_rerun(&flow, &again, &new, place(env_vars, &name), now)
            .map_err(|found| fields(&found).iter().map(|&field| field.to_owned()).collect::<Vec<_>>())
    };
    let nothing = Ok(BTreeMap::new());
    assert_eq!(rerun(&env("C"), [true, true], &[], NOW), nothing, "they fit as they are");
    assert_eq!(rerun(&env("de"), [false, false], &[], NOW), nothing, "nothing is run");
    let refused = |names: &[&str]| Err(names.iter().map(|name| format!("signatures[{name}]")).collect());
    assert_eq!(rerun(&env("de"), [true, true], &[], NOW), refused(&["split", "count"]));
    assert_eq!(rerun(&env("C"), [true, false], &[], NOW + HOUR), refused(&["split"]), "it is over");

    let (split, count) =
        (sign(&nodes()[0], &[], &env("de"), &key), sign(&nodes()[1], &["part.txt"], &env("de"), &key));
    let new = [("split", split.clone()), ("count", count.clone())];
    let taken = BTreeMap::from([(JobId(1), split.clone()), (JobId(2), count)]);
    assert_eq!(rerun(&env("de"), [true, true], &new, NOW), Ok(taken));
    assert_eq!(rerun(&env("de"), [true, false], &new, NOW), refused(&["count"]), "it is not run again");
    assert_eq!(rerun(&env("C"), [true, false], &new[..1], NOW), refused(&["split"]), "of other variables");
    let theirs = sign(&nodes()[0], &[], &env("de"), &SigningKey::generate());
    assert_eq!(rerun(&env("de"), [true, false], &[("split", theirs)], NOW), refused(&["split"]), "another's");
    let many: Vec<_> = (0..=limits::RETRY_SIGNATURES_MAX).map(|i| (format!("n{i}"), split.clone())).collect();
    let many: Vec<_> = many.iter().map(|(name, signature)| (name.as_str(), signature.clone())).collect();
    assert_eq!(rerun(&env("C"), [true, true], &many, NOW), Err(vec!["signatures".to_owned()]));
}

#[test]
fn a_key_that_counts_no_more_has_signed_nothing_that_runs_again() {
    let (before, after) = (SigningKey::generate(), SigningKey::generate());
    let [before_name, after_name] = [&before, &after].map(|key| key.verifying_key().to_string());
    let (flow, env_vars) = (stored(&signed(&["part.txt"], &before)), env("C"));
    let rerun = |keys: &[String]| {
        let found = for_rerun(&flow, &[true, false], &BTreeMap::new(), place(&env_vars, keys), NOW);
        found.map(drop).map_err(|found| fields(&found).join(" "))
    };
    assert_eq!(rerun(&[after_name.clone(), before_name]), Ok(()), "both count");
    assert_eq!(rerun(&[after_name]), Err("signatures[split]".to_owned()), "the former one is over");
}
