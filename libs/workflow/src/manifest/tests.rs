use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::catalog::{Catalog, File};
use crate::definition::{Action, Missing, Tenants};
use crate::provider::{Call, Transport, Unknown};

const EXAMPLE: &str = include_str!("example.yaml");

fn saga(documents: &[Document]) -> &Saga {
    match &documents[0].definition {
        Definition::Saga(saga) => saga,
        Definition::Provider(_) => panic!("a provider"),
    }
}

fn provider(document: &Document) -> &Provider {
    match &document.definition {
        Definition::Provider(provider) => provider,
        Definition::Saga(_) => panic!("a saga"),
    }
}

fn read_example() -> Vec<Document> {
    read("order.yaml", EXAMPLE).unwrap_or_else(|problems| panic!("{problems}"))
}

fn catalog(text: &str) -> Result<Catalog, String> {
    catalog_behind(text, &Catalog::default(), &[])
}

fn catalog_behind(text: &str, before: &Catalog, live: &[Arc<Saga>]) -> Result<Catalog, String> {
    let documents = read("m.yaml", text).map_err(|problems| problems.to_string())?;
    let file = File { name: "m.yaml".to_owned(), documents };
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
    assert_eq!(saga.tenants, Tenants::All);
    assert_eq!(saga.steps.len(), 6);
    assert_eq!(saga.missing("PaymentCaptured"), Missing::Park(Duration::from_secs(600)));
    assert_eq!(saga.missing("Other"), Missing::Ignore);
    assert!(saga.listens_to("OrderPlaced") && saga.listens_to("PaymentTimedOut") && !saga.listens_to("X"));
    let ahead = |step: &str| saga.ahead[&step.parse().expect("a step")].clone();
    assert!(ahead("reserve").contains("PaymentCaptured"));
    assert!(ahead("await-payment").is_empty() && ahead("ship").is_empty());
    let effects: Vec<_> = saga.effects().into_iter().map(EffectName::as_str).collect();
    assert_eq!(effects, ["mail-receipt", "make-label", "payment-release", "payment-reserve"]);
    let ship = &saga.steps[&"ship".parse().expect("a step")];
    assert!(ship.is_pivot && matches!(ship.action, Action::Work(_)));
    let orders: Vec<_> = documents[0].orders.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(orders.len(), 4);
    let payment = provider(&documents[1]);
    assert!(matches!(payment.transport, Transport::Http(_)));
    let reserve = &payment.effects[0];
    assert!(matches!(reserve.unknown, Unknown::Query(_)));
    assert_eq!((reserve.breaker.failures_per_mille, reserve.limits.per_tenant), (500, 4));
    assert!(matches!(payment.effects[1].unknown, Unknown::Retry));
    assert!(matches!(provider(&documents[2]).effects[0].call, Call::Flow(_)));
    assert!(matches!(provider(&documents[3]).effects[0].unknown, Unknown::Fail));
    let catalog = catalog(EXAMPLE).expect("it fits");
    assert_eq!((catalog.sagas().count(), catalog.providers().count(), catalog.effects().count()), (1, 3, 4));
}

#[test]
fn a_definition_is_what_it_says_and_not_how() {
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

/// What stands in the example, what takes its place, and the problem that this makes.
const BAD: &[(&str, &str, &str)] = &[
    // Keys and kinds.
    ("correlate:", "corelate:", "7:1: a saga has no key `corelate`; did you mean `correlate`?"),
    ("kind: Saga\n", "kind: Sagga\n", "1:7: there is no kind `Sagga`; there are Saga and EffectProvider"),
    ("kind: Saga\n", "", "1:1: the document does not say what it is; write `kind: Saga`"),
    ("version: 3", "version: three", "3:10: `version` has to be a whole number from 1 on, not `three`"),
    ("version: 3", "version: 0", "`version` is a whole number from 1 on, not 0"),
    ("version: 3", "version: 1.5", "`version` has to be a whole number from 1 on, not `1.5`"),
    ("name: order-fulfilment", "name: order_fulfilment", "the name of a saga is made of A-Z a-z 0-9 and -"),
    ("name: order-fulfilment\n", "", "a saga needs `name`; write `name: order-fulfilment`"),
    ("tenants: all", "tenants: acme", "`tenants` has to be `all` or a list of tenants"),
    ("tenants: all", "tenants: [a.b]", "the tenant is made of A-Z a-z 0-9 _ and -, not '.'"),
    ("email: text", "email: txt", "`txt` is no kind of a field; did you mean `text`?"),
    ("{ order_id: text", "{ order-id: text", "a field of the state is a letter, then letters, digits and _"),
    ("tenants: all", "tenants: all\nshards: 17", "`shards` has to be a whole number from 1 to 16, not `17`"),
    ("{ aggregate: Payment }", "{ aggregate: \"Pay*\" }", "the type of an aggregate is 1 to 128 characters"),
    ("{ aggregate: Payment }", "{ aggregate: Order }", "the source `Order` is named twice"),
    (
        "{ aggregate: Payment }",
        "{ aggregate: P, versions: 3..1 }",
        "`versions` has to be a version or a range",
    ),
    ("history: 500", "history: 501", "`history` has to be a whole number from 1 to 500, not `501`"),
    (
        "name: order-fulfilment",
        "name: order-fulfilment\nname: twice",
        "`name` is written twice in the same mapping",
    ),
    // The calendar.
    (
        "  on: OrderPlaced",
        "  schedule: \"0 25 * * *\"\n  on: OrderPlaced",
        "`schedule` has to be five fields as cron has them, in UTC, such as \"0 3 * * *\": ",
    ),
    ("  on: OrderPlaced", "  schedule: \"@daily\"\n  on: OrderPlaced", ": it has five fields, not 1"),
    (
        "  on: OrderPlaced",
        "  schedule: \"0 3 * * *\"\n  catch_up: some\n  on: OrderPlaced",
        "`catch_up` has to be last, all or none, not `some`",
    ),
    (
        "  on: OrderPlaced",
        "  catch_up: all\n  on: OrderPlaced",
        "`catch_up` is about a `schedule`, and there is none",
    ),
    // Steps and where they lead.
    (
        "goto: await-payment",
        "goto: await-paiment",
        "there is no step `await-paiment`; did you mean `await-payment`?",
    ),
    ("goto: refuse }", "goto: ship }", "nothing leads to the step `refuse`"),
    ("pivot: true", "pivot: yes", "`pivot` has to be true or false, not `yes`"),
    (
        "  mark-shipped:\n    command",
        "  mark-shipped:\n    pivot: true\n    command",
        "the step `mark-shipped` is a pivot behind the pivot `ship`",
    ),
    (
        "effect: make-label  ",
        "compensate: { effect: payment-release }\n    effect: make-label  ",
        "the step `ship` is a pivot: it is never compensated",
    ),
    (
        "on_success: { goto: receipt }",
        "on_success: { compensate: too late }",
        "the step `mark-shipped` compensates, and is reached only behind the pivot",
    ),
    (
        "{ compensate: the reservation failed }",
        "{ goto: reserve }",
        "the step `reserve` goes to itself when it failed: a retry around a retry",
    ),
    (
        "effect: payment-reserve\n",
        "effect: payment-reserve\n    retry: { attempts: 3 }\n",
        "the step `reserve` has no key `retry`; a retry around a retry: the provider of the effect retries it",
    ),
    (
        "effect: payment-reserve\n",
        "effect: payment-reserve\n    on: { X: { end: failed } }\n",
        "the step `reserve` is one thing, not effect and on",
    ),
    ("    on_done: { end: completed }", "    on_done: { end: done }", "`end` has to be completed or failed"),
    ("on_done: { end: completed }", "on_done: { }", "nothing follows; it needs one of `goto`"),
    ("    on_done: { end: completed }", "    pivot: false", "the step `receipt` needs `on_success`"),
    ("goto: refuse }", "goto: refuse, end: failed }", "one thing follows, not goto and end"),
    (
        "on_success: { goto: receipt }",
        "on_success: [{ goto: receipt }, { end: failed }]",
        "this is never reached: what stands before it has no `when`",
    ),
    (
        "on_success: { goto: receipt }",
        "on_success: [{ when: 1 == 1, goto: receipt }]",
        "the last way of `on_success` is for everything else; leave its `when` out",
    ),
    (
        "raise: PaymentTimedOut",
        "raise: PaymentTimeOut",
        "the timer `pay-by` raises `PaymentTimeOut`, for which",
    ),
    ("after: 30m", "after: 30", "`after` has to be a length of time, as 500ms, 90s, 30m, 2h or 7d, not `30`"),
    ("after: 30m", "after: 30m, due: now", "the timer `pay-by` has both `after` and `due`"),
    (
        "ignore: { ship:",
        "ignore: { shipp:",
        "`ignore` names the step `shipp`, which there is not; did you mean `ship`?",
    ),
    (
        "ship: [PaymentCaptured]",
        "ship: [PaymentCapture]",
        "`ignore` names `PaymentCapture`, for which no step waits",
    ),
    ("default: ignore", "default: start", "an event that starts a saga is named by `start.on`"),
    ("steps: { reserving: reserve }", "steps: { reserving: gone }", "`migrate` names the step `gone`"),
    // Formulas.
    ("state.amount_cents, goto: ship", "stat.amount_cents, goto: ship", "`stat` is not known here"),
    ("${{ state.label }}", "${{ state.lable }}", "`state` has no field `lable`; did you mean `label`?"),
    ("${{ saga.reason }}", "${{ saga.raison }}", "`saga` has no field `raison`; did you mean `reason`?"),
    ("${{ result.payment_id }}", "${{ fetch(result) }}", "`fetch(…)` cannot stand in an expression"),
    ("${{ result.payment_id }}", "${{ 1.5 }}", "a number with a fraction cannot stand in an expression"),
    ("${{ result.payment_id }}", "${{ result.payment_id", "`${{` has no `}}`"),
    ("payload: { label:", "payload: { weight: 1.5, label:", "numbers are whole here; write \"1.5\""),
    (
        "set: { payment_id:",
        "set: { paiment_id:",
        "`state` has no field `paiment_id`; did you mean `payment_id`?",
    ),
    ("amount_cents: \"${{ event.data", "amount_cents: \"a ${{ event.data", "`state.amount_cents` is int"),
    ("result.code == \"declined\"", "event.type == \"x\"", "`event` is not known here"),
    // Effects.
    ("effect: make-label  ", "effect: make.label  ", "the name of an effect is made of A-Z a-z 0-9 and -"),
    (
        "effect: make-label  ",
        "effect: make-labels  ",
        "no provider has the effect `make-labels`; did you mean `make-label`?",
    ),
    ("transport: smtp", "transport: smpt", "there is no transport `smpt`; did you mean `smtp`?"),
    ("transport: smtp", "transport: grpc", "the transport `grpc` is not there yet"),
    ("transport: smtp\n", "", "a provider needs `transport`"),
    ("allow_hosts: [pay.internal]", "allow_hosts: [\"*.internal\"]", "`*.internal` is no host"),
    (
        "base_url: \"https://pay.internal\"",
        "base_url: pay.internal",
        "`base_url` has to be http:// or https://",
    ),
    ("bearer: \"secret:pay-token\"", "bearer: hunter2", "`bearer` names a secret, as `secret:name`"),
    ("method: DELETE", "method: REMOVE", "there are GET, PUT, POST, PATCH, DELETE, not `REMOVE`"),
    (
        "path: /v1/reservations,",
        "path: v1/reservations,",
        "`path` has to be a path behind the provider's `base_url`",
    ),
    ("status == 402 ||", "state == 402 ||", "`state` is not known here"),
    ("unknown_outcome: fail", "unknown_outcome: query", "`unknown_outcome` has to be retry, fail, manual or"),
    (
        "unknown_outcome: fail",
        "unknown_outcome: { query: { path: / } }",
        "only an upstream that speaks HTTP can be asked",
    ),
    ("attempts: 8", "attempts: 0", "`attempts` has to be a whole number from 1 on, not `0`"),
    ("rate: 100/s", "rate: 100", "`rate` has to be so many in a time, as 100/s, 20/m or 5/h, not `100`"),
    ("failure_ratio: 0.5", "failure_ratio: 1.5", "`failure_ratio` has to be a share from 0.001 to 1"),
    ("start_to_close: 5s", "start_to_close: 1h", "`start_to_close` is one call"),
    (
        "timeouts: { schedule_to_close: 1h }",
        "timeouts: { schedule_to_close: 1h, heartbeat: 59s }",
        "`heartbeat` is at least 60s: signs of life of flows may be so far apart",
    ),
    (
        "start_to_close: 5s,",
        "start_to_close: 5s, heartbeat: 1m,",
        "`heartbeat` is for flows: the answer of the effect `payment-reserve` comes with its call",
    ),
    (
        "unknown_outcome: retry",
        "callback: true\n    timeouts: { heartbeat: 5m }\n    unknown_outcome: retry",
        ": whoever completes the effect `payment-release` gives no signs of life before; leave `heartbeat` out",
    ),
    (
        "text: \"Your order is on its way.\",",
        "text: \"x\", timeouts: { heartbeat: 5m },",
        "`heartbeat` is for flows: the answer of the effect `mail-receipt` comes with its call",
    ),
    ("redact: [input.card", "redact: [card", "`card` is no field; write input.<field> or result.<field>"),
    (
        "flow_file: make-label.yaml",
        "flow_file: ../make-label.yaml",
        "`flow_file` has to be a file beside the manifest",
    ),
    ("actor: 1", "actor: one", "`actor` has to be a whole number from 1 on, not `one`"),
    ("starttls: required", "starttls: perhaps", "`starttls` has to be `starttls: required`"),
    ("subject: \"Order ${{ input.order_id }}\", ", "", "the effect `mail-receipt` needs `subject`"),
    ("name: labels", "name: payment", "the provider `payment` stands twice"),
    (
        "  make-label: {",
        "  payment-release: {",
        "the effect `payment-release` is that of the provider `payment` already",
    ),
    (
        "name: mail\n",
        "name: mail\ntenants: [acme]\n",
        "the effect `mail-receipt` of the provider `mail` is not for all tenants",
    ),
];

#[test]
fn what_is_wrong_has_its_place_and_its_way_out() {
    assert!(BAD.len() >= 40);
    for (good, bad, expected) in BAD {
        assert!(EXAMPLE.contains(good), "{good} does not stand in the example");
        let text = EXAMPLE.replacen(good, bad, 1);
        let refused = catalog(&text).err().unwrap_or_else(|| panic!("{bad}: nothing is wrong with it"));
        let place = refused.strip_prefix("m.yaml:").and_then(|rest| rest.chars().next());
        assert!(refused.contains(expected), "{bad}: {refused}");
        assert!(place.is_some_and(|c| c.is_ascii_digit()), "{bad}: {refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
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
fn what_cannot_be_read_at_all_is_told_at_its_place() {
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
    let Definition::Saga(live) = &documents[0].definition else { panic!("no saga") };
    let end = EXAMPLE.find("---\nkind: EffectProvider\nname: mail").expect("the last provider");
    let without_saga = EXAMPLE[..end].split_once("---\n").expect("several documents").1;
    let refused = catalog_behind(without_saga, &Catalog::default(), &[Arc::clone(live)]).expect_err("needed");
    assert!(
        refused.contains(
            "manifests: instances of `order-fulfilment`, version 3, need the effect `mail-receipt`"
        ),
        "{refused}"
    );
    assert!(catalog_behind(without_saga, &Catalog::default(), &[]).is_ok());
}

/// Checks a file for `acme`, which has `own` of its own.
fn checked(catalog: &Catalog, text: &str, own: &[&str], may_provide: bool) -> Result<(), String> {
    let documents = read("m.yaml", text).map_err(|problems| problems.to_string())?;
    let own: Vec<_> = own.iter().map(|text| read("own", text).expect("a good one").remove(0)).collect();
    let own = own.into_iter().map(|document| match document.definition {
        Definition::Saga(saga) => (saga.name.clone(), saga),
        Definition::Provider(_) => panic!("a provider"),
    });
    let file = File { name: "m.yaml".to_owned(), documents };
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
    let Definition::Saga(left_out) = &documents[0].definition else { panic!("no saga") };
    let before = Catalog::default().remembering([Arc::clone(left_out)]);
    let refused = catalog_behind(&EXAMPLE.replace("after: 30m", "after: 31m"), &before, &[]);
    assert!(refused.is_err_and(|why| why.contains("with other content")));
    assert!(catalog_behind(EXAMPLE, &before, &[]).is_ok());
}
