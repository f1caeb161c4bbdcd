use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::catalog::{Catalog, LoadedManifest, ManifestDraft, RequiredDefinition};
use crate::definition::{MissingInstancePolicy, StepAction, TenantSet};
use crate::provider::{
    CallLimits, CallRateLimit, EffectAction, ProviderLimits, ProviderTransport, UnknownOutcomePolicy,
};

mod bad;

use self::bad::BAD;

const EXAMPLE: &str = include_str!("example.yaml");

fn saga(documents: &[ManifestDocument]) -> &Saga {
    match &documents[0].definition {
        ManifestDefinition::Saga(saga) => saga,
        ManifestDefinition::Provider(_) => panic!("a provider"),
    }
}

fn provider(document: &ManifestDocument) -> &EffectProvider {
    match &document.definition {
        ManifestDefinition::Provider(provider) => provider,
        ManifestDefinition::Saga(_) => panic!("a saga"),
    }
}

fn read_example() -> Vec<ManifestDocument> {
    read("order.yaml", EXAMPLE).unwrap_or_else(|problems| panic!("{problems}"))
}

fn catalog(text: &str) -> Result<Catalog, String> {
    catalog_behind(text, &Catalog::default(), &[])
}

fn catalog_behind(text: &str, before: &Catalog, live: &[RequiredDefinition]) -> Result<Catalog, String> {
    let documents = read("m.yaml", text).map_err(|problems| problems.to_string())?;
    let file = LoadedManifest { name: "m.yaml".to_owned(), documents };
    Catalog::new(&[file], before, live).map_err(|all| {
        let all: Vec<_> = all.iter().map(ToString::to_string).collect();
        all.join("\n")
    })
}

#[test]
fn the_example_is_read_as_it_is_meant() {
    let documents = read_example();
    assert_eq!(documents.len(), 4);
    let saga = saga(&documents);
    assert_eq!((saga.name.as_str(), saga.version, saga.shards), ("order-fulfilment", 3, 1));
    assert_eq!(saga.tenants, TenantSet::All);
    assert_eq!(saga.steps.len(), 6);
    assert_eq!(saga.missing("PaymentCaptured"), MissingInstancePolicy::Park(Duration::from_secs(600)));
    assert_eq!(saga.missing("Other"), MissingInstancePolicy::Ignore);
    assert!(saga.listens_to("OrderPlaced") && saga.listens_to("PaymentTimedOut") && !saga.listens_to("X"));
    let ahead = |step: &str| saga.upcoming_events[&step.parse().expect("a step")].clone();
    assert!(ahead("reserve").contains("PaymentCaptured"));
    assert!(ahead("await-payment").is_empty() && ahead("ship").is_empty());
    let effects: Vec<_> = saga.effects().into_iter().map(EffectName::as_str).collect();
    assert_eq!(effects, ["mail-receipt", "make-label", "payment-release", "payment-reserve"]);
    let ship = &saga.steps[&"ship".parse().expect("a step")];
    assert!(ship.is_pivot && matches!(ship.action, StepAction::Work(_)));
    let orders: Vec<_> = documents[0].orders.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(orders.len(), 4);
    let payment = provider(&documents[1]);
    assert!(matches!(payment.transport, ProviderTransport::Http(_)));
    let reserve = &payment.effects[0];
    assert!(matches!(reserve.unknown, UnknownOutcomePolicy::Query(_)));
    assert_eq!((reserve.breaker.failures_per_mille, reserve.limits.per_tenant), (500, 4));
    assert!(matches!(payment.effects[1].unknown, UnknownOutcomePolicy::Retry));
    assert!(matches!(provider(&documents[2]).effects[0].call, EffectAction::Flow(_)));
    assert!(matches!(provider(&documents[3]).effects[0].unknown, UnknownOutcomePolicy::Fail));
    let catalog = catalog(EXAMPLE).expect("it fits");
    assert_eq!((catalog.sagas().count(), catalog.providers().count(), catalog.effects().count()), (1, 3, 4));
}

#[test]
fn a_provider_may_limit_its_effects_together() {
    let shared = |text: &str| {
        let documents = read("t", text).unwrap_or_else(|problems| panic!("{problems}"));
        let effects = provider(&documents[1]).effects.iter();
        effects.map(|effect| effect.shared.as_deref().cloned()).collect::<Vec<_>>()
    };
    assert_eq!(shared(EXAMPLE), [None, None]);
    let limited =
        EXAMPLE.replace("name: payment\n", "name: payment\nlimits: { concurrency: 8, rate: 50/s }\n");
    let rate = Some(CallRateLimit { count: 50, each: Duration::from_secs(1) });
    let limits = CallLimits { concurrency: 8, per_tenant: 8, rate };
    let expected = ProviderLimits { provider: "payment".parse().expect("a name"), limits };
    assert_eq!(shared(&limited), [Some(expected.clone()), Some(expected)]);
    let wrong =
        read("t", &limited.replace("concurrency: 8", "at_once: 8")).expect_err("no such key").to_string();
    assert!(wrong.contains("t:54:11"), "{wrong}");
}

#[test]
fn the_hash_of_a_definition_depends_on_content_and_not_on_formatting() {
    let documents = read_example();
    for document in &documents {
        let again = read("again", &document.text).unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!((again.len(), again[0].hash), (1, document.hash));
        assert_eq!(again[0].text, document.text);
    }
    let other = EXAMPLE.replace("{ order_id: text,", "{ \"order_id\": \"text\",   # its number\n   ");
    assert_eq!(read("other", &other).expect("good")[0].hash, documents[0].hash);
    let other = EXAMPLE.replace("after: 30m", "after: 31m");
    assert_ne!(read("other", &other).expect("good")[0].hash, documents[0].hash);
}

/// Where something is wrong: the line and the column of a line that begins with them behind the name of its file.
fn place_of<'a>(file: &str, problem: &'a str) -> Option<(u64, u64, &'a str)> {
    let (line, rest) = problem.strip_prefix(file)?.strip_prefix(':')?.split_once(':')?;
    let (column, message) = rest.split_once(": ")?;
    Some((line.parse().ok()?, column.parse().ok()?, message))
}

/// Mistakes that are told elsewhere than in the line where they are made: what is missing where it should stand, what a step or a document
/// says as a whole where that begins, and what is not there for a saga where it is ordered.
const ELSEWHERE: &[&str] = &[
    "a saga needs `name`; write `name: order-fulfilment`",
    "nothing leads to the step `refuse`",
    "the step `ship` is a pivot: it is never compensated",
    "the step `mark-shipped` compensates, and is reached only behind the pivot",
    "the step `reserve` goes to itself when it failed: a retry around a retry",
    "the step `reserve` is one thing, not effect and on",
    "the step `receipt` needs `on_success`",
    "a provider needs `transport`",
    "the provider `payment` stands twice",
    "the effect `payment-release` is that of the provider `payment` already",
    "the effect `mail-receipt` of the provider `mail` is not for all tenants",
];

#[test]
fn what_is_wrong_has_its_place_and_its_way_out() {
    assert!(BAD.len() >= 40);
    let mut elsewhere = Vec::new();
    for (good, bad, expected) in BAD {
        assert!(EXAMPLE.contains(good), "{good} does not stand in the example");
        let text = EXAMPLE.replacen(good, bad, 1);
        let refused = catalog(&text).err().unwrap_or_else(|| panic!("{bad}: nothing is wrong with it"));
        assert!(refused.contains(expected), "{bad}: {refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
        let first = EXAMPLE.split(good).next().expect("it stands there").matches('\n').count() as u64 + 1;
        let last = first + bad.trim_end_matches('\n').matches('\n').count() as u64;
        for problem in refused.lines() {
            let place = place_of("m.yaml", problem);
            let (line, column, _) = place.unwrap_or_else(|| panic!("{bad}: no line and column: {problem}"));
            let written = text
                .lines()
                .nth(line as usize - 1)
                .unwrap_or_else(|| panic!("{bad}: no such line: {problem}"));
            let there = written.chars().nth(column as usize - 1);
            assert!(there.is_some_and(|c| !c.is_whitespace()), "{bad}: nothing stands there: {problem}");
            if problem.contains(expected) && !(first..=last).contains(&line) {
                elsewhere.push(*expected);
            }
        }
    }
    assert_eq!(elsewhere, ELSEWHERE);
}

#[test]
fn every_problem_of_a_manifest_is_listed_at_once() {
    let text = EXAMPLE
        .replace("correlate:", "corelate:")
        .replace("goto: await-payment", "goto: nowhere")
        .replace("after: 30m", "after: 1y")
        .replace("attempts: 8", "attempts: many");
    let refused = catalog(&text).expect_err("four things are wrong");
    for expected in ["`corelate`", "`nowhere`", "not `1y`", "not `many`"] {
        assert!(refused.contains(expected), "{expected}: {refused}");
    }
}

#[test]
fn no_mistake_hides_another_one() {
    let text = EXAMPLE
        .replace("name: order-fulfilment", "name: order_fulfilment")
        .replace("correlate: event.", "correlate: evnt.")
        .replace("tenants: all", "tenants: acme\nshards: 99")
        .replace("history: 500", "history: 0")
        .replace("goto: await-payment", "goto: nowhere")
        .replace("path: /v1/reservations,", "path: reservations,")
        .replace("attempts: 8", "attempts: 0")
        .replace("window: 20", "window: many")
        .replace("redact: [input.card", "redact: [card");
    let refused = catalog(&text).expect_err("nine things are wrong");
    for expected in [
        "the name of a saga is made of",
        "`evnt` is not known here",
        "`tenants` has to be `all` or",
        "not `99`",
        "not `0`",
        "there is no step `nowhere`",
        "`path` has to be a path",
        "`attempts` has to be a whole number from 1 on",
        "not `many`",
        "`card` is no field",
    ] {
        assert!(refused.contains(expected), "{expected}: {refused}");
    }
}

/// Returns the problems of the files together, one line for each.
fn problems_of(files: &[(&str, &str)]) -> Vec<String> {
    let drafts: Vec<_> = files.iter().map(|(name, text)| ManifestDraft::read(name, text)).collect();
    let problems = Catalog::of(&drafts, &Catalog::default(), &[]).err().unwrap_or_default();
    problems
        .iter()
        .flat_map(|problems| problems.to_string().lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

#[test]
fn problems_of_one_document_and_of_all_together_are_listed_at_once() {
    let (saga, providers) = EXAMPLE.split_once("\n---\n").expect("several documents");
    assert_eq!(problems_of(&[("s", saga), ("p", providers)]), Vec::<String>::new());
    let misspelled = saga.replace("effect: payment-release", "effect: payment-releas");
    // A provider that is wrong by itself has its effects all the same.
    let wrong = providers.replace("attempts: 8", "attempts: many");
    let found = problems_of(&[("s", &misspelled), ("p", &wrong)]);
    let [of_provider, of_saga] = found.as_slice() else { panic!("two: {found:?}") };
    assert!(of_provider.contains("not `many`"), "{found:?}");
    assert!(of_saga.ends_with("the effect `payment-releas`; did you mean `payment-release`?"), "{found:?}");
    // So it is with a saga that is wrong by itself.
    let both = misspelled.replace("goto: refuse }", "goto: refused }");
    let found = problems_of(&[("s", &both), ("p", providers)]);
    assert!(found.iter().any(|problem| problem.contains("there is no step `refused`")), "{found:?}");
    assert!(found.iter().any(|problem| problem.contains("the effect `payment-releas`")), "{found:?}");
    // What cannot be read may have every effect, and what else is wrong is told with it.
    let twice = format!("{saga}\n---\n{}", saga.replace("version: 3", "version: 4"));
    for unreadable in ["kind: [", "kind: Provider\n", &providers.replace("effects:", "efects:")] {
        let found = problems_of(&[("s", &format!("{twice}\n---\n{misspelled}")), ("p", unreadable)]);
        assert!(
            found.iter().any(|problem| problem.contains("the saga `order-fulfilment` stands twice")),
            "{found:?}"
        );
        assert!(found.iter().any(|problem| problem.starts_with("p:")), "{found:?}");
        assert!(!found.iter().any(|problem| problem.contains("no provider has")), "{found:?}");
    }
}

#[test]
fn an_unreadable_manifest_is_reported_at_its_position() {
    for (text, expected) in [
        ("", "m.yaml:1:1: the manifest is empty"),
        ("---\n---\n", "m.yaml:1:1: the manifest is empty"),
        ("- a\n", "m.yaml:1:1: a document of a manifest is a mapping, not a list"),
        ("kind: Saga\nname: [\n", "m.yaml:"),
    ] {
        let refused = catalog(text).expect_err(text);
        assert!(refused.starts_with(expected), "{text}: {refused}");
    }
    let refused = catalog(&"#".repeat(MANIFEST_BYTES_MAX + 1)).expect_err("too long");
    assert!(refused.contains("at most 1048576 bytes, this one has 1048577"), "{refused}");
}

#[test]
fn a_version_has_one_content_for_ever() {
    let before = catalog(EXAMPLE).expect("good");
    assert!(catalog_behind(EXAMPLE, &before, &[]).is_ok());
    let refused = catalog_behind(&EXAMPLE.replace("after: 30m", "after: 31m"), &before, &[]);
    let refused = refused.expect_err("other content");
    assert!(
        refused.contains(
            "version 3 of the saga `order-fulfilment` is in force with other content; write `version: 4`"
        ),
        "{refused}"
    );
    let newer = EXAMPLE.replace("after: 30m", "after: 31m").replace("version: 3", "version: 4");
    assert!(catalog_behind(&newer, &before, &[]).is_ok());
    let refused = catalog_behind(&EXAMPLE.replace("version: 3", "version: 2"), &before, &[]);
    assert!(refused.is_err_and(|why| why.contains("is behind version 3, which is in force")));
    let shards = EXAMPLE.replace("version: 3", "version: 4\nshards: 2");
    assert!(catalog_behind(&shards, &before, &[]).is_err_and(|why| why.contains("has 1 shards")));
}

#[test]
fn what_instances_are_pinned_to_keeps_its_effects() {
    let documents = read_example();
    let ManifestDefinition::Saga(live) = &documents[0].definition else { panic!("no saga") };
    let end = EXAMPLE.find("---\nkind: EffectProvider\nname: mail").expect("the last provider");
    let without_saga = EXAMPLE[..end].split_once("---\n").expect("several documents").1;
    let live = [RequiredDefinition { saga: Arc::clone(live), tenant: "acme".parse().expect("a tenant") }];
    let refused = catalog_behind(without_saga, &Catalog::default(), &live).expect_err("needed");
    assert!(
        refused.contains(
            "manifests: instances of `order-fulfilment`, version 3, need the effect `mail-receipt`"
        ),
        "{refused}"
    );
    assert!(catalog_behind(without_saga, &Catalog::default(), &[]).is_ok());
    // All are there, and one of them is for others.
    let whole = EXAMPLE.split_once("---\n").expect("several documents").1;
    let narrowed = whole.replace("name: mail\n", "name: mail\ntenants: [globex]\n");
    assert_ne!(whole, narrowed);
    let refused = catalog_behind(&narrowed, &Catalog::default(), &live).expect_err("needed");
    let why =
        "of the tenant `acme` need the effect `mail-receipt`, which the provider `mail` has for others only";
    assert!(refused.contains(why), "{refused}");
    assert!(catalog_behind(&narrowed.replace("globex", "acme"), &Catalog::default(), &live).is_ok());
}

/// Checks a file for `acme`, which has `own` of its own.
fn checked(catalog: &Catalog, text: &str, own: &[&str], may_provide: bool) -> Result<(), String> {
    let documents = read("m.yaml", text).map_err(|problems| problems.to_string())?;
    let own: Vec<_> = own.iter().map(|text| read("own", text).expect("a good one").remove(0)).collect();
    let own = own.into_iter().map(|document| match document.definition {
        ManifestDefinition::Saga(saga) => (saga.name.clone(), saga),
        ManifestDefinition::Provider(_) => panic!("a provider"),
    });
    let file = LoadedManifest { name: "m.yaml".to_owned(), documents };
    let tenant = "acme".parse().expect("a tenant");
    catalog.check_for(&tenant, &file, &own.collect(), may_provide).map_err(|problems| problems.to_string())
}

#[test]
fn what_a_tenant_brings_has_to_fit_what_it_has() {
    const MINE: &str = "kind: Saga\nname: mine\nversion: 2\nsources: [{ aggregate: O }]\nstart: { on: A, goto: s }\nsteps: { s: { effect: payment-reserve, on_done: { end: completed } } }\n";
    let catalog = catalog(EXAMPLE).expect("good");
    let check = |text: &str| checked(&catalog, text, &[MINE], false);
    assert_eq!(check(MINE), Ok(()));
    assert_eq!(check(&MINE.replace("version: 2", "version: 3")), Ok(()));
    assert_eq!(check(&MINE.replace("version: 2", "version: 3\ntenants: [acme]")), Ok(()));
    for (good, bad, expected) in [
        (
            "on: A",
            "on: B",
            "m.yaml:1:1: version 2 of the saga `mine` is in force with other content; write `version: 3`",
        ),
        ("version: 2", "version: 1", "version 1 of the saga `mine` is behind version 2"),
        ("version: 2", "version: 3\nshards: 2", "the saga `mine` has 1 shards"),
        (
            "version: 2",
            "version: 3\ntenants: [other]",
            "the saga `mine` is not for the tenant that it is applied for",
        ),
        (
            "payment-reserve",
            "payment-reserv",
            ": no provider has the effect `payment-reserv`; did you mean `payment-reserve`?",
        ),
        (
            "name: mine",
            "name: order-fulfilment",
            "the saga `order-fulfilment` comes from the operator's directory",
        ),
    ] {
        let refused = check(&MINE.replace(good, bad)).expect_err(bad);
        assert!(refused.contains(expected), "{bad}: {refused}");
    }
    let refused = check(&format!("{MINE}---\n{MINE}")).expect_err("twice");
    assert!(refused.contains("the saga `mine` stands twice"), "{refused}");
    // Providers are the operator's, and are only looked at.
    let refused = check(EXAMPLE).expect_err("providers").lines().count();
    assert_eq!(refused, 4);
    assert_eq!(checked(&catalog, EXAMPLE, &[], true), Ok(()));
    let other = EXAMPLE.replace("name: mail\n", "name: post\n");
    let refused = checked(&catalog, &other, &[], true).expect_err("another provider has it");
    assert!(
        refused.contains("the effect `mail-receipt` is that of the provider `mail` already"),
        "{refused}"
    );
    // What is wrong with the file itself is told with what does not fit.
    let tenant = "acme".parse().expect("a tenant");
    let both = MINE.replace("payment-reserve", "payment-reserv").replace("goto: s }", "goto: nowhere }");
    let refused =
        catalog.check_draft_for(&tenant, &ManifestDraft::read("m.yaml", &both), &BTreeMap::new(), false);
    let refused = refused.expect_err("two things").to_string();
    assert!(refused.contains("no provider has the effect `payment-reserv`"), "{refused}");
    assert!(refused.contains("there is no step `nowhere`"), "{refused}");
    assert!(
        catalog
            .check_draft_for(&tenant, &ManifestDraft::read("m.yaml", MINE), &BTreeMap::new(), false)
            .is_ok()
    );
    // What a tenant may not use is not there for it.
    let hidden = EXAMPLE
        .replace("tenants: all", "tenants: [b]")
        .replace("name: payment\n", "name: payment\ntenants: [b]\n");
    let hidden = super::tests::catalog(&hidden).expect("good");
    let refused = checked(&hidden, MINE, &[], false).expect_err("not for acme");
    assert!(refused.ends_with("no provider has the effect `payment-reserve`"), "{refused}");
    // Nor is a saga that is not for it.
    assert_eq!(
        checked(
            &hidden,
            &MINE.replace("name: mine", "name: order-fulfilment").replace("payment-reserve", "mail-receipt"),
            &[],
            false
        ),
        Ok(())
    );
}

#[test]
fn what_was_left_out_is_remembered() {
    let documents = read_example();
    let ManifestDefinition::Saga(left_out) = &documents[0].definition else { panic!("no saga") };
    let before = Catalog::default().remembering([Arc::clone(left_out)]);
    let refused = catalog_behind(&EXAMPLE.replace("after: 30m", "after: 31m"), &before, &[]);
    assert!(refused.is_err_and(|why| why.contains("with other content")));
    assert!(catalog_behind(EXAMPLE, &before, &[]).is_ok());
}
