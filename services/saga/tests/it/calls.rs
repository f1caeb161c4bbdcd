//! Calls to real servers over real sockets, from their commands to their results: what came of them, how many attempts there were, and
//! how far apart.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::{CommandId, EffectState};
use testkit::{PATIENCE, wait_until};
use workflow::Json;
use workflow::input::CommandOutcome;
use workflow::message::EffectResult;

use crate::effects::command;
use crate::sink::{Answers, CUT, SmtpSink, Tls};
use crate::stage::{Stage, json, provider};
use crate::upstream::{Act, Upstream, UpstreamRequest, answer};
use crate::world::{EFFECT, World};

const MIB: usize = 1024 * 1024;
/// A saga that orders the effect whose lane is owned here.
const SAGA: &str = "kind: Saga\nname: order\nversion: 1\nsources: [{ aggregate: Order }]\n\
                    start: { on: OrderPlaced, goto: reserve }\n\
                    steps: { reserve: { effect: payment-reserve, on_success: { end: completed } } }\n---\n";
/// How often a call is made that passes each time.
const ATTEMPTS: u32 = 4;
/// How long a call may take.
const START_TO_CLOSE: Duration = Duration::from_secs(5);
/// How long an upstream wants to be left alone.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Times of stores are cut to this.
const TICK: Duration = Duration::from_millis(1);

/// A request as a server got it.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    at: Instant,
    request: UpstreamRequest,
}

/// Requests in the order in which they came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Requests(Arc<Mutex<Vec<Got>>>);

impl Requests {
    /// Notes a request; gives how many of its kind there were with it.
    pub(crate) fn note(
        &self,
        request: &UpstreamRequest,
        is_of_kind: impl Fn(&UpstreamRequest) -> bool,
    ) -> usize {
        let mut all = self.0.lock().expect("no panic");
        all.push(Got { at: Instant::now(), request: request.clone() });
        all.iter().filter(|got| is_of_kind(&got.request)).count()
    }

    pub(crate) fn all(&self) -> Vec<Got> {
        self.0.lock().expect("no panic").clone()
    }
}

/// A row of the table: what an upstream does, and what becomes of the call by it.
struct Case {
    name: &'static str,
    /// Acts of the upstream at each request; the last again and again.
    acts: Vec<Act>,
    /// Act of the upstream when it is asked for the call.
    known: Option<Act>,
    state: EffectState,
    /// A part of the payload of the result; nothing where there is no result.
    result: Option<&'static str>,
    attempts: u32,
    questions: usize,
    /// How much later than its order the end of the call is at least.
    takes: Duration,
}

impl Case {
    fn new(name: &'static str, acts: Vec<Act>, state: EffectState, result: &'static str) -> Self {
        let (attempts, questions, takes) = (1, 0, Duration::ZERO);
        Self { name, acts, known: None, state, result: Some(result), attempts, questions, takes }
    }

    fn attempts(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    fn takes(self, takes: Duration) -> Self {
        Self { takes, ..self }
    }

    fn known(self, act: Act) -> Self {
        Self { known: Some(act), questions: 1, ..self }
    }
}

fn done() -> Act {
    answer(200, &[], r#"{"id":7}"#)
}

fn status(status: u16) -> Act {
    answer(status, &[], "{}")
}

/// Makes an act that does what it is asked for, and whose answer is lost.
fn lost() -> Act {
    Act::Send(String::new())
}

fn too_long() -> Act {
    answer(200, &[], &"x".repeat(MIB + 1))
}

/// An answer that begins, and goes on after these bytes only when it may.
fn begins() -> (String, String) {
    ("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"id\"".to_owned(), ":7}".to_owned())
}

fn hangs() -> [Act; 2] {
    [Act::SendAndHang(String::new()), Act::SendAndHang(begins().0)]
}

/// Lists cases of calls whose outcome is known, whatever the policy for unknown outcomes.
fn known() -> Vec<Case> {
    use EffectState::{Failed, Succeeded};
    let storm = || [500, 502, 503, 504].map(status);
    let busy = answer(429, &["Retry-After: 1"], "{}");
    let declined = answer(402, &[], r#"{"code":"declined"}"#);
    vec![
        Case::new("success", vec![done()], Succeeded, r#""id":7"#),
        Case::new("refused", vec![status(404)], Failed, "http_404"),
        Case::new("declined", vec![declined], Failed, r#""code":"declined""#),
        Case::new("storm", storm().to_vec(), Failed, "unavailable").attempts(ATTEMPTS),
        Case::new("over", storm().into_iter().take(3).chain([done()]).collect(), Succeeded, r#""id":7"#)
            .attempts(4),
        Case::new("busy", vec![busy, done()], Succeeded, r#""id":7"#).attempts(2).takes(RETRY_AFTER),
    ]
}

/// Lists cases of calls whose outcome is unknown, by their policy.
fn cases(policy: &str) -> Vec<Case> {
    use EffectState::{Failed, Manual, Succeeded};
    let [silent, half] = hangs();
    let more = match policy {
        "retry" => {
            let twice = |name, act| Case::new(name, vec![act, done()], Succeeded, r#""id":7"#).attempts(2);
            let slow = begins();
            vec![
                twice("lost", lost()),
                twice("long", too_long()),
                twice("silent", silent).takes(START_TO_CLOSE),
                twice("half", half).takes(START_TO_CLOSE),
                Case::new("slow", vec![Act::SendSlowly(slow.0, slow.1)], Succeeded, r#""id":7"#),
            ]
        }
        "fail" => {
            let once = |name, act| Case::new(name, vec![act], Failed, r#""code":"unknown""#);
            vec![
                once("lost", lost()),
                once("long", too_long()),
                once("silent", silent).takes(START_TO_CLOSE),
                once("half", half).takes(START_TO_CLOSE),
            ]
        }
        "manual" => vec![Case { result: None, ..Case::new("lost", vec![lost()], Manual, "") }],
        _ => {
            let found = |name, act| Case::new(name, vec![act], Succeeded, r#""id":7"#).known(done());
            let absent = Case::new("absent", vec![lost(), done()], Succeeded, r#""id":7"#).attempts(2);
            vec![found("lost", lost()), found("long", too_long()), absent.known(status(404))]
        }
    };
    known().into_iter().chain(more).collect()
}

/// The effect with this policy, by an upstream to which requests name their case.
fn effects(policy: &str) -> String {
    let policy = match policy {
        "query" => "{ query: { path: \"/x?case=${{ input.name }}\", absent: status == 404 } }",
        other => other,
    };
    format!(
        "effects:\n  {EFFECT}:\n    request: {{ method: POST, path: \"/x?case=${{{{ input.name }}}}\", body: \"${{{{ input }}}}\" }}\n    \
         unknown_outcome: {policy}\n    timeouts: {{ start_to_close: {}s, schedule_to_close: 10m }}\n    \
         retry: {{ initial: 1ms, factor: 2, max: 5ms, attempts: {ATTEMPTS} }}\n    \
         limits: {{ concurrency: 64, per_tenant: 64 }}\n    breaker: {{ window: 1000 }}\n",
        START_TO_CLOSE.as_secs()
    )
}

/// The case that a request names.
fn case_of(request: &UpstreamRequest) -> &str {
    request.line.split_once("case=").expect("it is named").1
}

fn is_question(request: &UpstreamRequest) -> bool {
    request.line.starts_with("GET ")
}

type Script = Arc<Mutex<BTreeMap<&'static str, (Vec<Act>, Option<Act>)>>>;

/// An upstream with TLS that does what the script says.
async fn scripted(stage: &Stage, script: &Script, requests: &Requests) -> Upstream {
    let (script, requests) = (Arc::clone(script), requests.clone());
    Upstream::start(Some(stage.acceptor("localhost")), move |request| {
        let is_of_kind = |other: &UpstreamRequest| {
            case_of(other) == case_of(request) && is_question(other) == is_question(request)
        };
        let number = requests.note(request, is_of_kind);
        let script = script.lock().expect("no panic");
        let (acts, known) = &script[case_of(request)];
        if is_question(request) {
            return known.clone().expect("nobody asks");
        }
        acts[(number - 1).min(acts.len() - 1)].clone()
    })
    .await
}

/// Results of so many calls, by their commands.
async fn results(world: &mut World, count: usize) -> BTreeMap<CommandId, (EffectResult, Instant)> {
    let mut results = BTreeMap::new();
    while results.len() < count {
        let result = world.result().await;
        let before = results.insert(result.command_id, (result, Instant::now()));
        assert!(before.is_none(), "one result for each: {before:?}");
    }
    results
}

/// Orders all cases of a policy at once, and looks at what becomes of them.
async fn run(world: &mut World, stage: &Stage, policy: &str, numbers: u128, what: &str) {
    let (script, requests) = (Script::default(), Requests::default());
    let upstream = scripted(stage, &script, &requests).await;
    let cases = cases(policy);
    for case in &cases {
        script.lock().expect("no panic").insert(case.name, (case.acts.clone(), case.known.clone()));
    }
    let document = format!("{}{}", upstream.transport(), effects(policy));
    world.apply(&format!("{SAGA}kind: EffectProvider\nname: it\n{document}")).await;
    world.own_effect(Arc::new(stage.http(&provider(&document))));
    let ordered = Instant::now();
    let numbered = || cases.iter().zip(numbers..);
    for (case, number) in numbered() {
        let input = Json::object([("name", Json::text(case.name))]);
        world.command(&command(number, input), &format!("c-{number}")).await;
    }
    if cases.iter().any(|case| case.name == "slow") {
        let has_come =
            async || requests.all().iter().any(|got| case_of(&got.request) == "slow").then_some(());
        wait_until(has_come, PATIENCE, "the slow one is asked").await;
        upstream.open_gate();
    }
    let results = results(world, cases.iter().filter(|case| case.result.is_some()).count()).await;
    for (case, number) in numbered() {
        let what = format!("{what}, {policy}, {}", case.name);
        world.until(number, case.state).await;
        let (id, row) = (CommandId::from_bits(number), world.call(number).await);
        assert_eq!(row.attempts, case.attempts, "{what}");
        if let Some(part) = case.result {
            let (result, at) = &results[&id];
            assert!(result.payload.to_string().contains(part), "{what}: {}", result.payload);
            let is_unknown = part.contains("unknown");
            let outcome = match case.state {
                EffectState::Succeeded => CommandOutcome::Succeeded,
                _ if is_unknown => CommandOutcome::Unknown,
                _ => CommandOutcome::Failed,
            };
            assert_eq!((result.result_type, result.may_have_happened), (outcome, is_unknown), "{what}");
            assert!(at.duration_since(ordered) + TICK >= case.takes, "{what}");
        }
        look_at_requests(case, id, &requests.all(), &what);
    }
    let ended = world.stop().await;
    assert!(matches!(ended, saga::lane::LaneExit::Stopped { .. }), "{ended}");
}

/// Each attempt is one request, under one key and with one body, and none comes before it may.
fn look_at_requests(case: &Case, id: CommandId, all: &[Got], what: &str) {
    let of_case = all.iter().filter(|got| case_of(&got.request) == case.name);
    let (questions, calls): (Vec<_>, Vec<_>) = of_case.partition(|got| is_question(&got.request));
    assert_eq!((calls.len(), questions.len()), (case.attempts as usize, case.questions), "{what}");
    for Got { request, .. } in &calls {
        assert_eq!(request.header("idempotency-key"), Some(id.to_string().as_str()), "{what}");
        assert_eq!(request.body, calls[0].request.body, "{what}");
    }
    if case.name == "busy" {
        let pause = calls[1].at.duration_since(calls[0].at);
        assert!(pause + TICK >= RETRY_AFTER, "{what}: again after {pause:?}");
    }
}

async fn run_all(mut world: World, what: &str) {
    let stage = Stage::new();
    world.results().await;
    for (policy, numbers) in [("retry", 100), ("fail", 200), ("query", 300), ("manual", 400)] {
        run(&mut world, &stage, policy, numbers, what).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_over_tls_have_the_results_attempts_and_times_of_the_table() {
    tokio::join!(
        run_all(World::simulated().await, "in memory"),
        run_all(World::in_a_directory().await, "in a directory"),
        run_all(World::in_redis().await, "in Redis"),
    );
}

/// How long an upstream is left alone that has failed too often.
const OPEN: Duration = Duration::from_secs(1);
/// Failures that make the breaker open.
const WINDOW: usize = 3;
/// Commands that are ordered while it is open.
const LATER: u128 = 5;

fn breaks() -> String {
    effects("retry")
        .replace(
            "breaker: { window: 1000 }",
            &format!("breaker: {{ window: {WINDOW}, open: {}s, probes: 1 }}", OPEN.as_secs()),
        )
        .replace(&format!("attempts: {ATTEMPTS}"), "attempts: 8")
        // Probes are held for longer than a call may take.
        .replace(&format!("start_to_close: {}s", START_TO_CLOSE.as_secs()), "start_to_close: 5m")
}

/// Attempts of the calls up to a number, and how many of them are being made.
async fn attempts(world: &World, most: u128) -> (usize, usize) {
    let (mut sum, mut calling) = (0, 0);
    for number in 1..=most {
        let row = world.call(number).await;
        sum += row.attempts as usize;
        calling += usize::from(row.state == EffectState::Calling);
    }
    (sum, calling)
}

fn is_open(is_open: bool) -> String {
    format!("mycora_saga_breaker_open{{upstream=\"{EFFECT}\"}} {}", u8::from(is_open))
}

async fn break_and_heal(mut world: World, what: &str) {
    let (stage, requests) = (Stage::new(), Requests::default());
    let keeps = requests.clone();
    // The window, a probe that fails, and one that is held.
    let upstream = Upstream::start(Some(stage.acceptor("localhost")), move |request| {
        let number = keeps.note(request, |_| true);
        let (first, rest) = begins();
        match number {
            _ if number <= WINDOW + 1 => status(503),
            _ if number == WINDOW + 2 => Act::SendSlowly(first, rest),
            _ => done(),
        }
    })
    .await;
    let document = format!("{}{}", upstream.transport(), breaks());
    world.apply(&format!("{SAGA}kind: EffectProvider\nname: it\n{document}")).await;
    world.results().await;
    world.own_effect(Arc::new(stage.http(&provider(&document))));
    let input = || Json::object([("name", Json::text("x"))]);
    world.command(&command(1, input()), "c-1").await;
    world.until_measured(&is_open(true)).await;
    for number in 2..=1 + LATER {
        world.command(&command(number, input()), &format!("c-{number}")).await;
    }
    let probes = async || (requests.all().len() == WINDOW + 2).then_some(());
    wait_until(probes, PATIENCE, "the second probe is made").await;
    // One more while the call is held: no other call is let through.
    let most = 2 + LATER;
    world.command(&command(most, input()), "c-last").await;
    world.until(most, EffectState::Accepted).await;
    // Attempts are requests, and one is under way.
    let is_alone = async || (attempts(&world, most).await == (WINDOW + 2, 1)).then_some(());
    wait_until(is_alone, PATIENCE, format!("{what}: one call is made, and all others wait")).await;
    world.until_measured(&is_open(true)).await;
    let released = Instant::now();
    upstream.open_gate();
    for (result, _) in results(&mut world, most as usize).await.values() {
        assert_eq!(result.result_type, CommandOutcome::Succeeded, "{what}");
        assert_eq!(result.payload, json(r#"{"id":7}"#));
    }
    world.until_measured(&is_open(false)).await;
    let all = requests.all();
    let gap = |number: usize| all[number].at.duration_since(all[number - 1].at);
    assert!(gap(WINDOW) + TICK >= OPEN, "{what}: nothing is called while it is open: {:?}", gap(WINDOW));
    assert!(gap(WINDOW + 1) + TICK >= OPEN, "{what}: a probe that fails opens it again");
    assert!(all[WINDOW + 2].at >= released, "{what}: one probe at a time");
    // One request for each command beyond the failures: being left alone costs no attempt.
    assert_eq!(all.len(), WINDOW + 1 + most as usize, "{what}");
    assert_eq!(attempts(&world, most).await, (all.len(), 0), "{what}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_fails_is_left_alone_without_attempts_until_one_probe_succeeds() {
    tokio::join!(
        break_and_heal(World::simulated().await, "in memory"),
        break_and_heal(World::in_a_directory().await, "in a directory"),
        break_and_heal(World::in_redis().await, "in Redis"),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mails_over_starttls_end_as_listed_in_the_table() {
    use EffectState::{Failed, Succeeded};
    for (answers, state, part, attempts, mails) in [
        (Answers::new(), Succeeded, "message_id", 1, 1),
        (Answers::from([("MAIL", "451 not now".to_owned())]), Failed, "unavailable", ATTEMPTS, 0),
        (Answers::from([("RCPT", "550 nobody".to_owned())]), Failed, "smtp_550", 1, 0),
        // Taken, and the answer was lost: mails are not sent twice.
        (Answers::from([("mail", CUT.to_owned())]), Failed, r#""code":"unknown""#, 1, 1),
    ] {
        let (stage, mut world) = (Stage::new(), World::simulated().await);
        let sink = SmtpSink::start(Tls::Later(stage.acceptor("localhost")), answers).await;
        let document = format!(
            "transport: smtp\nsmtp: {{ host: localhost, port: {}, private: true, starttls: required, from: [shop@shop.test], \
             ca: \"secret:ca\", auth: {{ user: shop, password: \"secret:token\" }} }}\neffects:\n  {EFFECT}:\n    \
             to: ann@home.test\n    subject: s\n    text: t\n    retry: {{ initial: 1ms, max: 5ms, attempts: {ATTEMPTS} }}\n",
            sink.port
        );
        world.apply(&format!("{SAGA}kind: EffectProvider\nname: it\n{document}")).await;
        world.results().await;
        world.own_effect(Arc::new(stage.smtp(&provider(&document))));
        world.command(&command(1, Json::object([])), "c-1").await;
        let result = world.result().await;
        assert!(result.payload.to_string().contains(part), "{part}: {}", result.payload);
        let row = world.call(1).await;
        assert_eq!((row.state, row.attempts), (state, attempts), "{part}");
        assert_eq!(sink.mails().len(), mails, "{part}");
        assert!(sink.mails().iter().all(|mail| mail.is_encrypted && !mail.login.is_empty()));
        assert_eq!(sink.connections().await, attempts as usize, "{part}");
    }
}
