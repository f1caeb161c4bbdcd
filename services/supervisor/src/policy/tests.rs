use super::*;
use model::id::Uid;
use model::{ActorId, Attempt, ContextId, FlowId, FlowUid, Isolation, JobId, JobKey, ScriptSource};

const COORDINATOR: &str = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";

fn rules(text: &str) -> PolicyRules {
    PolicyRules::parse(text).unwrap_or_else(|wrong| panic!("{wrong}"))
}

const fn admitted(root: &str) -> JobSender<'_> {
    JobSender { root, is_admitted: true }
}

fn uid(bits: u128) -> ContextUid {
    ContextUid(Uid::from_bits(bits))
}

fn of(context: u128) -> Execution {
    let job_key = JobKey {
        context: uid(context),
        flow: FlowUid(Uid::from_bits(9)),
        job: JobId(1),
        attempt: Attempt(1),
    };
    let name = |text: &str| text.parse().expect("a name");
    let script = ScriptSource::Inline(String::new());
    Execution {
        context_id: ContextId(1),
        flow_id: FlowId(1),
        caller_id: ActorId(1),
        ..Execution::of_script(job_key, name("flow"), name("node"), ScriptType::Shell, script)
    }
}

#[test]
fn a_context_has_its_own_settings_and_else_the_default() {
    let text = format!(
        "[default]\nnetwork = false\nisolation = \"confined\"\nprocesses = 8\nscript_types = [\"python\"]\n\
         [contexts.{}]\nnetwork = true\nmemory_mib = 64\ndisk_mib = 2\ncontext_disk_mib = 3\n\
         hosts = [\"*.test:8443\", \"[::1]\", \"*\"]\naddresses = [\"127.0.0.53:53\", \"fd00::/8\"]\n\
         script_types = [\"shell\", \"rhai\"]\ncoordinators = [\"{COORDINATOR}\"]\n\
         [contexts.{}]\nallow = false\n",
        uid(1),
        uid(2)
    );
    let rules = rules(&text);
    let mut job = of(1);
    job.network = true;
    let grants = rules.grant(&job, admitted(COORDINATOR), None).expect("granted");
    let hosts = ["*.test:8443", "[::1]", "*"].map(str::to_owned).to_vec();
    let expected = Grants {
        network: true,
        isolation: Isolation::Confined,
        memory_bytes: 64 << 20,
        processes: 8,
        disk_bytes: 2 << 20,
        context_disk_bytes: 3 << 20,
        hosts,
        addresses: vec!["127.0.0.53:53".parse().expect("a range"), "fd00::/8".parse().expect("a range")],
    };
    assert_eq!(grants, expected);
    let denied = rules.grant(&job, admitted("somebody else"), None).expect_err("another coordinator");
    assert!(matches!(denied, PolicyDenial::Coordinator { .. }) && denied.code() == "POLICY_REFUSED");
    job.script_type = ScriptType::Python;
    let denied = rules.grant(&job, admitted(COORDINATOR), None).expect_err("another type");
    assert!(
        denied
            .to_string()
            .ends_with(&format!("takes no python jobs of context {}, only shell, rhai", uid(1)))
    );

    let denied = rules.grant(&of(2), admitted(COORDINATOR), None).expect_err("no jobs at all");
    assert_eq!(denied, PolicyDenial::Context(uid(2)));
    let mut job = of(3);
    job.script_type = ScriptType::Python;
    assert!(
        rules
            .grant(&job, admitted("anybody"), None)
            .is_ok_and(|grants| grants.processes == 8 && !grants.network)
    );
    job.network = true;
    assert_eq!(
        rules.grant(&job, admitted("anybody"), None).expect_err("no network").code(),
        "NETWORK_REFUSED"
    );
}

#[test]
fn only_what_some_actors_signed_is_taken() {
    let [one, other] = [(); 2].map(|()| identity::SigningKey::generate().verifying_key());
    let text = format!(
        "[default]\nactor_keys = [\"{one}\"]\n\
         [contexts.{}]\nrequire_actor_signature = false\n\
         [contexts.{}]\nactor_keys = []\n",
        uid(2),
        uid(3),
    );
    let keyed = rules(&text);
    let required = rules("[default]\nrequire_actor_signature = true\n");
    let denied =
        |rules: &PolicyRules, context, signer| rules.grant(&of(context), admitted("anybody"), signer).err();
    let by = |context, signer: VerifyingKey| {
        Some(PolicyDenial::Actor { context: uid(context), signer: signer.to_string() })
    };
    assert_eq!(denied(&keyed, 1, Some(one)), None);
    assert_eq!(denied(&keyed, 1, Some(other)), by(1, other));
    assert_eq!(
        denied(&keyed, 1, None),
        Some(PolicyDenial::Unsigned(uid(1))),
        "who names keys wants signatures"
    );
    assert_eq!(denied(&keyed, 2, None), None, "unless it says otherwise");
    assert_eq!(denied(&keyed, 2, Some(other)), by(2, other));
    assert_eq!(denied(&keyed, 3, Some(one)), by(3, one));
    assert_eq!(denied(&required, 1, Some(other)), None, "anybody's");
    assert_eq!(denied(&required, 1, None).map(|denial| denial.code()), Some("POLICY_REFUSED"));
}

#[test]
fn without_a_policy_everything_is_taken() {
    let mut job = of(1);
    job.network = true;
    for rules in [PolicyRules::default(), rules("")] {
        assert_eq!(rules.grant(&job, admitted("anybody"), None), Ok(Grants::default()));
    }
}

#[test]
fn every_problem_of_a_policy_is_listed_at_once() {
    let text = "other = 1\n[default]\nnetwork = \"no\"\nprocesses = 0\nmemory = 1\nisolation = \"jail\"\n\
                hosts = [\"a b\", 1]\naddresses = [\"localhost\"]\nscript_types = [\"perl\"]\n[contexts.x]\ndisk_mib = -1\ncoordinators = [\"me\"]\n\
                actor_keys = [\"me\"]\nrequire_actor_signature = 1\n";
    let wrong = PolicyRules::parse(text).expect_err("wrong");
    let mut fields: Vec<_> = wrong.as_slice().iter().map(|violation| violation.field.as_str()).collect();
    fields.sort_unstable();
    let expected = [
        "contexts.x",
        "contexts.x.actor_keys[0]",
        "contexts.x.coordinators[0]",
        "contexts.x.disk_mib",
        "contexts.x.require_actor_signature",
        "default.addresses[0]",
        "default.hosts[0]",
        "default.hosts[1]",
        "default.isolation",
        "default.memory",
        "default.network",
        "default.processes",
        "default.script_types[0]",
        "other",
    ];
    assert_eq!(fields, expected);
    let wrong = PolicyRules::parse("[default]\nallow = \n").expect_err("no TOML");
    assert_eq!(wrong.as_slice()[0].field, "line 2");
}

#[test]
fn a_broken_file_never_takes_effect() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("policy.toml");
    assert!(matches!(
        Policy::load(Some(&path), DefaultCoordinators::Anyone),
        Err(PolicyFileError::Unreadable { .. })
    ));
    let write = |text: &str| std::fs::write(&path, text).expect("written");
    write("[default]\nallow = 3\n");
    assert!(matches!(
        Policy::load(Some(&path), DefaultCoordinators::Anyone),
        Err(PolicyFileError::Wrong { .. })
    ));
    write("[default]\nallow = false\n");
    let policy = Policy::load(Some(&path), DefaultCoordinators::Anyone).expect("a policy");
    let takes = || policy.rules().grant(&of(1), admitted("anybody"), None).is_ok();
    assert!(!takes() && !policy.reload_if_changed().expect("as before"));
    write("[default]\nallow = true\nalow = 1\n");
    assert!(policy.reload_if_changed().is_err() && !takes());
    assert!(!policy.reload_if_changed().expect("told once") && !takes());
    std::fs::remove_file(&path).expect("removed");
    assert!(
        policy.reload_if_changed().is_err() && !policy.reload_if_changed().expect("told once") && !takes()
    );
    write("[default]\nallow = true\n");
    assert!(policy.reload_if_changed().expect("read") && takes());
}

#[test]
fn an_unnamed_coordinator_is_refused_with_the_way_to_name_it() {
    let stranger = JobSender { root: COORDINATOR, is_admitted: false };
    let denied = PolicyRules::default().grant(&of(1), stranger, None).expect_err("nobody has named it");
    assert_eq!((&denied, denied.code()), (&PolicyDenial::Unnamed(COORDINATOR.to_owned()), "POLICY_REFUSED"));
    let text = denied.to_string();
    assert!(text.contains(&format!("`--coordinator {COORDINATOR}`")) && text.contains("policy"), "{text}");

    // A policy names the coordinator for one context; the others stay closed.
    let named = rules(&format!("[contexts.{}]\ncoordinators = [\"{COORDINATOR}\"]\n", uid(1)));
    assert!(named.grant(&of(1), stranger, None).is_ok());
    assert!(matches!(named.grant(&of(2), stranger, None), Err(PolicyDenial::Unnamed(_))));
    let other = JobSender { root: "other", is_admitted: true };
    assert!(matches!(named.grant(&of(1), other, None), Err(PolicyDenial::Coordinator { .. })));
    assert!(named.grant(&of(2), other, None).is_ok());
}

#[test]
fn a_supervisor_reports_that_no_coordinator_is_named() {
    let load = |text: Option<&str>, admitted: DefaultCoordinators| {
        let dir = tempfile::tempdir().expect("a directory");
        let path = text.map(|text| {
            let path = dir.path().join("policy.toml");
            std::fs::write(&path, text).expect("written");
            path
        });
        Policy::load(path.as_deref(), admitted).expect("a policy")
    };
    let nobody = || DefaultCoordinators::Only(BTreeSet::new());
    let named = format!("[default]\ncoordinators = [\"{COORDINATOR}\"]\n");
    let none_named = "[default]\ncoordinators = []\n";
    for (text, admitted, has_problem) in [
        (None, DefaultCoordinators::Anyone, false),
        (None, nobody(), true),
        (Some(""), nobody(), true),
        (Some(none_named), nobody(), true),
        (Some(&*named), nobody(), false),
        (None, DefaultCoordinators::Only(BTreeSet::from([COORDINATOR.to_owned()])), false),
    ] {
        assert_eq!(
            load(text, admitted.clone()).intake_problem().is_some(),
            has_problem,
            "{text:?} {admitted:?}"
        );
    }
}

#[test]
fn the_successor_of_a_named_root_is_admitted() {
    let policy =
        Policy::load(None, DefaultCoordinators::Only(BTreeSet::from(["old".to_owned()]))).expect("a policy");
    let current = |name: &str| if name == "old" { "new".to_owned() } else { name.to_owned() };
    assert!(policy.admits("old", str::to_owned) && policy.admits("new", current));
    assert!(!policy.admits("new", str::to_owned) && !policy.admits("other", current));
}

#[test]
fn a_weight_is_that_of_the_context_or_the_default() {
    let text =
        format!("[default]\nweight = 2\n[contexts.{}]\nweight = 1000\n[contexts.{}]\n", uid(1), uid(2));
    let rules = rules(&text);
    for (context, weight) in [(1, 1000), (2, 2), (3, 2)] {
        assert_eq!(rules.weight(uid(context)).get(), weight);
    }
    assert_eq!(PolicyRules::default().weight(uid(1)).get(), 1);
    for wrong in ["0", "1001", "-1", "1.5", "\"3\""] {
        let refused =
            PolicyRules::parse(&format!("[default]\nweight = {wrong}\n")).expect_err(wrong).to_string();
        assert!(refused.contains("default.weight: has to be a number from 1 to 1000"), "{refused}");
    }
}
