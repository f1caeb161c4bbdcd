//! Routes by which an operator makes a process do something.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use service::{
    ADMIN_LIMITS, AdminHandlers, AdminMethods, AdminRoutes, AdminScope, DrainError, InfoScope, Ops,
    OpsAccess, ReloadError, UnknownTenant,
};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::{Answer, Port, TOKEN};

const SECRET: &str = "the secret of the API gateway";
const METHODS: AdminMethods =
    AdminMethods { drain: "mycora.v1.SagaService/Drain", reload: "mycora.v1.SagaService/Reload" };
/// More than enough: what happens at all happens at once.
const PATIENCE: Duration = Duration::from_secs(20);
const ROUTES: [&str; 2] = ["/admin/drain", "/admin/reload"];

/// A service of three tenants; others have sagas elsewhere, or are made up.
struct Handlers(Arc<Seen>);

#[derive(Debug)]
struct Seen {
    requests: Mutex<Vec<String>>,
    /// One permit for each reload of the slow tenant that has begun.
    begun: Semaphore,
    /// One permit for each of them that may go on.
    may_end: Semaphore,
    ended: Semaphore,
}

impl Seen {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    /// Waits until this many permits are there, and takes them.
    async fn wait(semaphore: &Semaphore, permits: u32) {
        let waiting = tokio::time::timeout(PATIENCE, semaphore.acquire_many(permits));
        waiting.await.expect("it never came to that").unwrap().forget();
    }

    fn note(&self, verb: &str, scope: &AdminScope) {
        self.requests.lock().unwrap().push(format!("{verb} {scope}"));
    }
}

impl AdminHandlers for Handlers {
    async fn drain(&self, scope: AdminScope) -> Result<Value, DrainError> {
        self.0.note("drain", &scope);
        match scope {
            AdminScope::Process => Ok(json!({"in_flight": 7})),
            AdminScope::Tenant(tenant) => match tenant.as_str() {
                "acme" => Ok(json!({"in_flight": 2})),
                "away" => Err(DrainError::Unavailable("the store is away".to_owned())),
                _ => Err(UnknownTenant.into()),
            },
        }
    }

    async fn reload(&self, scope: AdminScope) -> Result<Value, ReloadError> {
        self.0.note("reload", &scope);
        let AdminScope::Tenant(tenant) = scope else { return Ok(json!({"changed": ["order 1.2.0"]})) };
        match tenant.as_str() {
            "acme" => Ok(json!({"changed": []})),
            "away" => Err(ReloadError::Unavailable("the store is away".to_owned())),
            "broken" => Err(ReloadError::Problems("a.yaml:1:2: no\nb.yaml:3:4: neither".to_owned())),
            "buggy" => panic!("part of the test: a handler panics"),
            "slow" => {
                self.0.begun.add_permits(1);
                self.0.may_end.acquire().await.unwrap().forget();
                self.0.ended.add_permits(1);
                Ok(Value::Null)
            }
            _ => Err(UnknownTenant.into()),
        }
    }

    fn info(&self, scope: &InfoScope) -> Result<Value, UnknownTenant> {
        match scope {
            InfoScope::NoTenant => Ok(json!({"roles": ["saga"]})),
            InfoScope::AllTenants => Ok(json!({"roles": ["saga"], "tenants": ["acme", "other"]})),
            InfoScope::Tenant(tenant) if tenant.as_str() == "acme" => Ok(json!({"tenants": ["acme"]})),
            InfoScope::Tenant(_) => Err(UnknownTenant),
        }
    }

    fn waits(&self, scope: &InfoScope) -> Result<Vec<(String, String)>, UnknownTenant> {
        let wait = |about: &str| vec![(about.to_owned(), "starts\nwait".to_owned())];
        match scope {
            InfoScope::NoTenant => Ok(wait("quota")),
            InfoScope::AllTenants => Ok([wait("quota, acme"), wait("quota, other")].concat()),
            InfoScope::Tenant(tenant) if tenant.as_str() == "acme" => Ok(wait("quota, acme")),
            InfoScope::Tenant(_) => Err(UnknownTenant),
        }
    }
}

/// An ops port with admin routes.
struct Admin {
    port: Port,
    seen: Arc<Seen>,
    secret_file: PathBuf,
    _dir: tempfile::TempDir,
}

impl Admin {
    async fn open() -> Self {
        Self::with(Some, true).await
    }

    async fn with(flag: impl FnOnce(PathBuf) -> Option<PathBuf>, started: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let secret_file = dir.path().join("admin.secret");
        write_secret(&secret_file, &format!("{SECRET}\n"));
        let none = || Semaphore::new(0);
        let seen = Seen { requests: Mutex::default(), begun: none(), may_end: none(), ended: none() };
        let seen = Arc::new(seen);
        let routes = AdminRoutes::new(METHODS, flag(secret_file.clone())).unwrap();
        if started {
            routes.handle_with(Handlers(seen.clone()));
        }
        let more = |ops: Ops| ops.with_admin(routes);
        let port = Port::with(&"127.0.0.1:0".parse().unwrap(), OpsAccess::Token, more).await;
        Self { port, seen, secret_file, _dir: dir }
    }

    /// Calls it with these header lines beside the length, without a body.
    async fn post(&self, path: &str, headers: &str) -> Answer {
        self.send("POST", path, headers, "").await
    }

    async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let head = format!("{method} {path} HTTP/1.1\r\nContent-Length: {}\r\n{headers}", body.len());
        self.port.ask(&head, body).await
    }

    /// Calls it as the API gateway for this tenant.
    async fn post_for(&self, path: &str, tenant: &str) -> Answer {
        self.post(path, &format!("{}X-Tenant-Id: {tenant}\r\n", bearer(SECRET))).await
    }

    async fn info(&self, headers: &str) -> Answer {
        self.port.ask(&format!("GET /info HTTP/1.1\r\n{headers}"), "").await
    }
}

fn write_secret(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn bearer(secret: &str) -> String {
    format!("Authorization: Bearer {secret}\r\n")
}

#[tokio::test]
async fn the_secret_opens_both_routes() {
    let admin = Admin::open().await;
    let drain = admin.post("/admin/drain", &bearer(SECRET)).await;
    assert_eq!(drain.status, 202, "the file ends with a line feed, which is no part of it");
    assert!(drain.head.contains("content-type: application/json"), "{drain:?}");
    assert_eq!(serde_json::from_str::<Value>(&drain.body).unwrap(), json!({"in_flight": 7}));
    let reload = admin.post("/admin/reload", &bearer(SECRET)).await;
    assert_eq!(reload.status, 200);
    assert_eq!(serde_json::from_str::<Value>(&reload.body).unwrap(), json!({"changed": ["order 1.2.0"]}));
    assert_eq!(admin.post_for("/admin/drain", "acme").await.status, 202);
    assert_eq!(admin.post_for("/admin/reload", "acme").await.status, 200);
    let expected = ["drain the process", "reload the process", "drain tenant acme", "reload tenant acme"];
    assert_eq!(admin.seen.take(), expected);
}

#[tokio::test]
async fn no_caller_gets_in_without_the_secret() {
    let (open, closed) = (Admin::open().await, Admin::with(|_| None, true).await);
    let longer = format!("{SECRET}, and more");
    let mut strangers = vec![String::new(), bearer(""), bearer("X"), bearer(TOKEN), bearer(&longer)];
    strangers.push(bearer(&SECRET.to_uppercase()));
    strangers.push(format!("Authorization: Basic {SECRET}\r\n"));
    strangers.push(bearer(SECRET) + &bearer("which one has the proxy looked at?"));
    for path in ROUTES {
        for stranger in &strangers {
            let answer = open.post(path, stranger).await;
            assert_eq!(answer.status, 403, "{path} {stranger}: {answer:?}");
            let method = if path == "/admin/drain" { METHODS.drain } else { METHODS.reload };
            let named = answer.body.contains("--admin-secret-file") && answer.body.contains(method);
            assert!(named && !answer.body.contains(SECRET), "{answer:?}");
            assert_eq!(open.send("POST", path, stranger, &"x".repeat(2000)).await.status, 403, "unread");
        }
        assert_eq!(closed.post(path, &bearer(SECRET)).await, open.post(path, "").await, "{path}");
    }
    assert_eq!((open.seen.take().len(), closed.seen.take().len()), (0, 0));
}

#[tokio::test]
async fn a_tenant_is_believed_beside_the_secret_only() {
    let (open, closed) = (Admin::open().await, Admin::with(|_| None, true).await);
    for path in ROUTES {
        for (admin, secret) in [(&open, String::new()), (&open, bearer(TOKEN)), (&closed, bearer(SECRET))] {
            for tenant in ["acme", "", "no/name"] {
                let headers = format!("{secret}x-tenant-id: {tenant}\r\n");
                let answer = admin.post(path, &headers).await;
                assert_eq!(answer.status, 400, "{path} {headers}: {answer:?}");
                let named =
                    answer.body.contains("x-tenant-id") && answer.body.contains("--admin-secret-file");
                assert!(named, "{answer:?}");
            }
        }
    }
    assert_eq!((open.seen.take().len(), closed.seen.take().len()), (0, 0));
}

#[tokio::test]
async fn a_tenant_that_cannot_be_is_refused() {
    let admin = Admin::open().await;
    let long = "a".repeat(65);
    for path in ROUTES {
        for tenant in ["", "a b", "a.b", "*", "a,b", "\u{e9}", &long, "a\r\nX-Tenant-Id: a"] {
            let answer = admin.post_for(path, tenant).await;
            assert_eq!(answer.status, 400, "{path} {tenant}: {answer:?}");
            assert!(answer.body.contains("x-tenant-id"), "{answer:?}");
        }
    }
    assert_eq!(admin.seen.take(), [""; 0]);
}

#[tokio::test]
async fn an_unknown_tenant_is_answered_like_a_foreign_one() {
    let admin = Admin::open().await;
    for path in ROUTES {
        let unknown = admin.post_for(path, "nobody").await;
        assert_eq!((unknown.status, unknown.body.as_str()), (404, "there is no such tenant\n"), "{path}");
        assert_eq!(admin.post_for(path, "other").await, unknown, "{path}");
    }
}

#[tokio::test]
async fn a_failed_admin_call_gets_its_status_and_reason() {
    let admin = Admin::open().await;
    let problems = admin.post_for("/admin/reload", "broken").await;
    assert_eq!(problems.status, 409);
    assert_eq!(problems.body, "a.yaml:1:2: no\nb.yaml:3:4: neither\n");
    for path in ROUTES {
        let away = admin.post_for(path, "away").await;
        assert_eq!((away.status, away.body.as_str()), (503, "the store is away\n"), "{path}");
    }
    let failed = admin.post_for("/admin/reload", "buggy").await;
    assert_eq!((failed.status, failed.body.as_str()), (500, "it failed; the log says why\n"));
    assert_eq!(admin.post_for("/admin/reload", "acme").await.status, 200, "one panic closes nothing");
}

#[tokio::test]
async fn nothing_but_post_is_allowed() {
    let admin = Admin::open().await;
    for path in ROUTES {
        for method in ["GET", "HEAD", "PUT", "DELETE"] {
            for headers in [String::new(), bearer(SECRET)] {
                let answer = admin.send(method, path, &headers, "").await;
                assert_eq!(answer.status, 405, "{method} {path}");
                assert!(answer.head.contains("allow: post"), "{answer:?}");
            }
        }
    }
    assert_eq!(admin.seen.take(), [""; 0]);
}

#[tokio::test]
async fn services_without_admin_routes_know_none() {
    let port = Port::open().await;
    for (method, path) in [("POST", "/admin/drain"), ("GET", "/admin/drain"), ("POST", "/admin/reload")] {
        let head = |path| format!("{method} {path} HTTP/1.1\r\nContent-Length: 0\r\n{}", bearer(TOKEN));
        let answer = port.ask(&head(path), "").await;
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.body, port.ask(&head("/other"), "").await.body);
    }
    let head = format!("GET /info HTTP/1.1\r\n{}x-tenant-id: acme\r\n", bearer(TOKEN));
    assert_eq!(port.ask(&head, "").await.status, 200, "they have no tenants");
}

#[tokio::test]
async fn health_gives_the_reason_for_waits_as_far_as_the_reader_may_see() {
    let admin = Admin::open().await;
    let health = async |headers: &str| {
        let answer = admin.port.ask(&format!("GET /health HTTP/1.1\r\n{headers}"), "").await;
        (answer.status, answer.body)
    };
    let reply = |status, text: &str| (status, text.to_owned());
    let secret = bearer(SECRET);
    let of = |tenant: &str| format!("{secret}x-tenant-id: {tenant}\r\n");
    assert_eq!(health("").await, reply(200, "healthy\n"));
    assert_eq!(health(&bearer(TOKEN)).await, reply(200, "healthy\nquota: starts wait\n"));
    assert_eq!(
        health(&secret).await,
        reply(200, "healthy\nquota, acme: starts wait\nquota, other: starts wait\n")
    );
    assert_eq!(health(&of("acme")).await, reply(200, "healthy\nquota, acme: starts wait\n"));
    assert_eq!(health(&of("unknown")).await.0, 404);
    assert_eq!(health("x-tenant-id: acme\r\n").await.0, 400);
    // Missing conditions are named to operators, and not to callers that name a tenant.
    admin.port.readiness.condition("lanes").unmet("that of other stays away");
    assert_eq!(health("").await, reply(503, "not healthy\n"));
    assert_eq!(
        health(&bearer(TOKEN)).await,
        reply(503, "lanes: that of other stays away\nquota: starts wait\n")
    );
    assert_eq!(health(&of("acme")).await, reply(503, "not healthy\nquota, acme: starts wait\n"));
}

#[tokio::test]
async fn only_an_empty_and_short_body_is_accepted() {
    let admin = Admin::open().await;
    let secret = bearer(SECRET);
    for path in ROUTES {
        for (body, status) in [
            (" \r\n".to_owned(), 2),
            ("{}".to_owned(), 2),
            (" ".repeat(1024), 2),
            ("{\"tenant\": \"acme\"}".to_owned(), 4),
            ("tenant=acme".to_owned(), 4),
            ("[1]".to_owned(), 4),
        ] {
            let answer = admin.send("POST", path, &secret, &body).await;
            assert_eq!(answer.status / 100, status, "{path} {body}: {answer:?}");
        }
        admin.seen.take();
        assert_eq!(admin.send("POST", path, &secret, &" ".repeat(1025)).await.status, 413);
        let chunked = format!("POST {path} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n{secret}");
        let chunk = format!("200\r\n{}\r\n", " ".repeat(512));
        assert_eq!(admin.port.ask(&chunked, &format!("{}0\r\n\r\n", chunk.repeat(3))).await.status, 413);
        assert_eq!(admin.seen.take(), [""; 0]);
        assert_eq!(admin.port.ask(&chunked, &format!("{}0\r\n\r\n", chunk.repeat(2))).await.status / 100, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let admin = Admin::open().await;
    for path in ROUTES {
        let head = format!("POST {path} HTTP/1.1\r\nContent-Length: 3\r\n{}", bearer(SECRET));
        let answer = admin.port.ask(&head, "{").await;
        assert_eq!(answer.status, 408, "{answer:?}");
    }
    assert_eq!(admin.seen.take(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_long_is_not_waited_for_and_comes_to_its_end() {
    let admin = Admin::open().await;
    let answer = admin.post_for("/admin/reload", "slow").await;
    assert_eq!(answer.status, 504, "{answer:?}");
    admin.seen.may_end.add_permits(1);
    Seen::wait(&admin.seen.ended, 1).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_cuts_nothing_in_half() {
    let admin = Admin::open().await;
    let mut stream = TcpStream::connect(&admin.port.address).await.unwrap();
    let head = "POST /admin/reload HTTP/1.1\r\nHost: ops\r\nContent-Length: 0\r\nX-Tenant-Id: slow\r\n";
    stream.write_all(format!("{head}{}\r\n", bearer(SECRET)).as_bytes()).await.unwrap();
    Seen::wait(&admin.seen.begun, 1).await;
    drop(stream);
    // By then the port has seen that it is gone.
    assert_eq!(admin.port.get("/livez").await.0, 200);
    admin.seen.may_end.add_permits(1);
    Seen::wait(&admin.seen.ended, 1).await;
}

#[tokio::test]
async fn a_few_may_be_under_way_and_reloads_hold_up_no_drain() {
    let admin = Arc::new(Admin::open().await);
    let slow = (0..4).map(|_| {
        let admin = admin.clone();
        tokio::spawn(async move { admin.post_for("/admin/reload", "slow").await })
    });
    let slow = slow.collect::<Vec<_>>();
    Seen::wait(&admin.seen.begun, 4).await;
    let busy = admin.post_for("/admin/reload", "acme").await;
    assert_eq!(busy.status, 429, "{busy:?}");
    assert!(busy.head.contains("retry-after: 1"), "{busy:?}");
    assert_eq!(admin.post("/admin/drain", &bearer(SECRET)).await.status, 202);
    admin.seen.may_end.add_permits(4);
    for one in slow {
        assert_eq!(one.await.unwrap().status, 200);
    }
    assert_eq!(admin.post_for("/admin/reload", "acme").await.status, 200);
}

#[tokio::test]
async fn a_starting_process_answers_that_it_is_starting() {
    let admin = Admin::with(Some, false).await;
    for path in ROUTES {
        let answer = admin.post(path, &bearer(SECRET)).await;
        assert_eq!((answer.status, answer.body.as_str()), (503, "the process is starting\n"), "{path}");
        assert_eq!(admin.post(path, "").await.status, 403, "strangers do not hear of it");
    }
    let info: Value = serde_json::from_str(&admin.info(&bearer(SECRET)).await.body).unwrap();
    assert_eq!(info.get("details"), None);
    assert_eq!(admin.info(&format!("{}x-tenant-id: acme\r\n", bearer(SECRET))).await.status, 503);
}

#[tokio::test]
async fn the_secret_may_be_exchanged_and_has_to_be_closed() {
    let admin = Admin::open().await;
    let drain = async |secret: &str| admin.post("/admin/drain", &bearer(secret)).await.status;
    let file = &admin.secret_file;
    write_secret(file, "the secret of today, with both ends\r\n");
    assert_eq!((drain(SECRET).await, drain("the secret of today, with both ends").await), (403, 202));
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(drain("the secret of today, with both ends").await, 403, "others read it");
    AdminRoutes::new(METHODS, Some(file.clone())).unwrap_err();
    for short in ["", "\n", "fifteen letters"] {
        write_secret(file, short);
        assert_eq!(drain(short.trim()).await, 403, "{short:?}");
        let error = AdminRoutes::new(METHODS, Some(file.clone())).unwrap_err();
        assert!(error.to_string().contains("secret of the admin routes"), "{error}");
    }
    std::fs::remove_file(file).unwrap();
    assert_eq!(drain(SECRET).await, 403);
    AdminRoutes::new(METHODS, Some(file.clone())).unwrap_err();
}

#[tokio::test]
async fn info_names_the_tenants_that_its_reader_may_see() {
    let admin = Admin::open().await;
    admin.port.notices.notice("manifests").set(Some("one of tenant other is old"));
    let read = async |headers: &str| {
        let answer = admin.info(headers).await;
        assert_eq!(answer.status, 200, "{headers} {answer:?}");
        let info: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(info["name"], "small");
        (info["details"].clone(), info.get("notices").is_some())
    };
    assert_eq!(read(&bearer(TOKEN)).await, (json!({"roles": ["saga"]}), true));
    let all = json!({"roles": ["saga"], "tenants": ["acme", "other"]});
    assert_eq!(read(&bearer(SECRET)).await, (all, true));
    let tenant = |secret: &str, tenant: &str| format!("{}x-tenant-id: {tenant}\r\n", bearer(secret));
    assert_eq!(read(&tenant(SECRET, "acme")).await, (json!({"tenants": ["acme"]}), false));
    let unknown = admin.info(&tenant(SECRET, "nobody")).await;
    assert_eq!((unknown.status, unknown.body.as_str()), (404, "there is no such tenant\n"));
    assert_eq!(admin.info(&tenant(SECRET, "other")).await, unknown);
    assert_eq!(admin.info(&tenant(SECRET, "no/name")).await.status, 400);
    assert_eq!(admin.info(&tenant(TOKEN, "acme")).await.status, 400, "never silently all of them");
    assert_eq!(admin.info("x-tenant-id: acme\r\n").await.status, 400);
    assert_eq!(admin.info("").await.status, 401);
    let metrics =
        async |headers: &str| admin.port.ask(&format!("GET /metrics HTTP/1.1\r\n{headers}"), "").await.status;
    assert_eq!((metrics(&bearer(TOKEN)).await, metrics(&bearer(SECRET)).await), (200, 401));
    assert_eq!((metrics(&tenant(TOKEN, "acme")).await, metrics(&tenant(SECRET, "acme")).await), (400, 400));
}

#[test]
fn limits_stand_on_the_page_of_serving() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../specs/serving.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (name, value) in ADMIN_LIMITS {
        assert!(page.contains(&format!("| `{name}` | {value}")), "{name} = {value}");
    }
    assert_eq!(page.matches("| `admin_").count(), ADMIN_LIMITS.len());
}
